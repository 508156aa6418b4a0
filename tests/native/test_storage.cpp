// Conversions between storage types and float32, on every ISA: exact one way, to the nearest the
// other, against plain arithmetic in double.
#include "check.h"

namespace rnnpack::check {
namespace {

bool same_number(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : bits_of(a) == bits_of(b);
}

// Every number of a 16-bit type, at any place of a vector and in its tail, and back again.
void check_all_numbers(const KernelTable& table, DType type) {
  constexpr int64_t kCount = 1 << 16;
  const Floats bits(kCount / 2), floats(kCount), back(kCount / 2);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto value = static_cast<uint16_t>(i);
    std::memcpy(element(bits.data(), type, i), &value, sizeof value);
  }
  table.to_floats[index(type)](kCount, bits.data(), floats.data());
  for (int64_t i = 0; i < kCount; ++i) {
    const float truth = type == DType::kHalf ? half_value(static_cast<uint16_t>(i))
                                             : float_of(static_cast<uint32_t>(i) << 16);
    expect(same_number(floats[i], truth), isa_name(table.isa), ", ", type_name(type), " bits ", i,
           ": expected ", truth, ", got ", floats[i]);
  }
  table.from_floats[index(type)](kCount, floats.data(), back.data());
  for (int64_t i = 0; i < kCount; ++i) {
    uint16_t value;
    std::memcpy(&value, element(back.data(), type, i), sizeof value);
    const bool nan = std::isnan(floats[i]);
    expect(nan ? (value & 0x7fff) > (type == DType::kHalf ? 0x7c00 : 0x7f80) : value == i,
           isa_name(table.isa), ", ", type_name(type), " bits ", i, " came back as ", value);
  }
}

// Floats near every number of the type, where rounding turns, and anywhere.
void check_rounding(const KernelTable& table, DType type, Random& random) {
  std::vector<float> values;
  for (uint32_t i = 0; i < (1u << 16); i += 7) {
    const uint32_t bits = i << 16;
    for (const uint32_t near : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u,
                                0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(float_of(bits + near));
  }
  for (int i = 0; i < 20000; ++i) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random.uniform(30.0f)));
    values.push_back(random.uniform(scale));
  }
  const auto count = static_cast<int64_t>(values.size());
  const Stored found(type, count);
  table.from_floats[index(type)](count, values.data(), found.data());
  for (int64_t i = 0; i < count; ++i) {
    const float truth = rounded(values[static_cast<size_t>(i)], type);
    expect(same_number(found[i], truth), isa_name(table.isa), ", ", values[static_cast<size_t>(i)],
           " to ", type_name(type), ": expected ", truth, ", got ", found[i]);
  }
}

// Every length: what lies past the end is neither read nor written.
void check_tails(const KernelTable& table, DType type, Random& random) {
  for (int64_t count = 0; count <= 35; ++count) {
    const Floats values(count), wide(count);
    random.fill(values, 1.0f);
    const Stored narrow(type, count);
    table.from_floats[index(type)](count, values.data(), narrow.data());
    table.to_floats[index(type)](count, narrow.data(), wide.data());
    for (int64_t i = 0; i < count; ++i) {
      expect(wide[i] == rounded(values[i], type), isa_name(table.isa), ", ", type_name(type), ", ",
             count, " numbers: ", i, " is ", wide[i]);
    }
  }
}

}  // namespace
}  // namespace rnnpack::check

int main() {
  using namespace rnnpack;
  using namespace rnnpack::check;
  Random random;
  for (const KernelTable* table : tables()) {
    for (const DType type : {DType::kBFloat16, DType::kHalf}) {
      check_tails(*table, type, random);
      check_all_numbers(*table, type);
      check_rounding(*table, type, random);
    }
  }
  return report("test_storage");
}
