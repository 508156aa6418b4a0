// What the programs in this folder share: checks that are counted, buffers that betray a wrong
// access, random numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/table.h"

namespace rnnpack::check {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kEps = std::numeric_limits<float>::epsilon();

inline int64_t checks = 0;
inline int64_t failures = 0;

// Counts one check; of those that fail the first twenty are printed, with what the parts say of the
// case.
template <class... Parts>
bool expect(bool holds, const Parts&... parts) {
  ++checks;
  if (holds) return true;
  constexpr int64_t kShown = 20;
  if (++failures <= kShown) {
    std::ostringstream text;
    text.precision(9);
    (text << ... << parts);
    std::cerr << "FAILED: " << text.str() << "\n";
  }
  return false;
}

// |found - truth| <= bound, written so that a NaN fails.
template <class... Parts>
bool expect_close(double found, double truth, double bound, const Parts&... parts) {
  return expect(std::abs(found - truth) <= bound, parts..., ": expected ", truth, " within ", bound,
                ", got ", found);
}

// The exit status of a program. A program that checked nothing has not passed.
inline int report(const char* program) {
  std::cout << program << ": " << checks << " checks, " << failures << " failed\n";
  return failures == 0 && checks > 0 ? 0 : 1;
}

// Floats on the heap, on a cache line and of exact size: what lies past the end is caught by
// AddressSanitizer. They start as NaN, so that what was never written shows.
class Floats {
 public:
  explicit Floats(int64_t size, float value = kNan)
      : size_(size),
        data_(static_cast<float*>(
            ::operator new(static_cast<size_t>(size) * sizeof(float), kAlignment))) {
    for (int64_t i = 0; i < size; ++i) data_.get()[i] = value;
  }

  float* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  float& operator[](int64_t i) const { return data_.get()[i]; }

  // The same bits, NaN included.
  bool same_bits(const Floats& other) const {
    if (size_ != other.size_) return false;
    return size_ == 0 ||
           std::memcmp(data(), other.data(), static_cast<size_t>(size_) * sizeof(float)) == 0;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };
  int64_t size_;
  std::unique_ptr<float, Free> data_;
};

// Rows with a heap buffer each, and the pointers to them that kernels take.
class RowBuffers {
 public:
  RowBuffers(int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; ++i) {
      buffers_.emplace_back(width);
      pointers_.push_back(buffers_.back().data());
    }
  }

  float* const* rows() const { return pointers_.data(); }
  const float* const* const_rows() const { return pointers_.data(); }
  const Floats& operator[](int64_t row) const { return buffers_[static_cast<size_t>(row)]; }

 private:
  std::vector<Floats> buffers_;
  std::vector<float*> pointers_;
};

// The same numbers in every run.
class Random {
 public:
  float uniform(float limit) {
    return std::uniform_real_distribution<float>(-limit, limit)(engine_);
  }
  void fill(const Floats& floats, float limit) { fill(floats, limit, floats.size()); }
  void fill(const Floats& floats, float limit, int64_t count) {
    for (int64_t i = 0; i < count; ++i) floats[i] = uniform(limit);
  }

 private:
  std::mt19937 engine_{20240229};
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The nearest number of a 16-bit type, ties to even, by way of double: `digits` of its mantissa,
// smallest exponent, largest value. Infinity and NaN stay what they are.
inline float rounded(float x, int digits, int smallest, double largest) {
  if (!std::isfinite(x) || x == 0.0f) return x;
  const int exponent = std::max(std::ilogb(x), smallest);
  const double step = std::ldexp(1.0, exponent - digits + 1);
  const double nearest = std::nearbyint(static_cast<double>(x) / step) * step;
  return std::abs(nearest) > largest ? std::copysign(std::numeric_limits<float>::infinity(), x)
                                     : static_cast<float>(nearest);
}
inline float rounded(float x, DType type) {
  switch (type) {
    case DType::kFloat: return x;
    case DType::kBFloat16: return rounded(x, 8, -126, 0x1.fep127);
    case DType::kHalf: return rounded(x, 11, -14, 65504.0);
  }
  return x;
}

// The bits of a number that `type` has, and back.
inline uint16_t half_bits(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000;
  const double magnitude = std::abs(static_cast<double>(x));
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14) return static_cast<uint16_t>(sign | std::lround(magnitude * 0x1p24));
  const int exponent = std::ilogb(magnitude);
  const auto fraction = std::lround((std::ldexp(magnitude, -exponent) - 1) * 1024);
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | fraction);
}
inline float half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1 + fraction / 1024, exponent - 15);
  if (exponent == 31)
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(kNan);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

// Numbers in memory of a storage type, of exact size; each reads as the float that it was rounded
// to.
class Stored {
 public:
  // Starts as NaN, which all ones are in every type.
  Stored(DType type, int64_t size)
      : type_(type), size_(size), bytes_(ceil_div(size * size_of(type), 4)) {
    if (size > 0) std::memset(bytes_.data(), 0xff, static_cast<size_t>(bytes_.size()) * 4);
  }
  Stored(DType type, const Floats& from) : Stored(type, from.size()) {
    for (int64_t i = 0; i < size_; ++i) set(i, from[i]);
  }

  // The elements end where the memory ends, so those of an odd number start on two bytes.
  void* data() const {
    return element(bytes_.data(), type_, bytes_.size() * 4 / size_of(type_) - size_);
  }
  int64_t size() const { return size_; }
  float operator[](int64_t i) const {
    if (type_ == DType::kFloat) return bytes_[i];
    uint16_t bits;
    std::memcpy(&bits, element(data(), type_, i), sizeof bits);
    return type_ == DType::kHalf ? half_value(bits) : float_of(static_cast<uint32_t>(bits) << 16);
  }
  void set(int64_t i, float value) const {
    const float x = rounded(value, type_);
    const uint16_t bits =
        type_ == DType::kHalf ? half_bits(x) : static_cast<uint16_t>(bits_of(x) >> 16);
    if (type_ == DType::kFloat) {
      bytes_[i] = x;
    } else {
      std::memcpy(element(data(), type_, i), &bits, sizeof bits);
    }
  }
  bool same_bits(const Stored& other) const {
    return size_ == other.size_ &&
           std::memcmp(data(), other.data(), static_cast<size_t>(size_ * size_of(type_))) == 0;
  }

 private:
  DType type_;
  int64_t size_;
  Floats bytes_;
};

inline constexpr DType kAllTypes[] = {DType::kFloat, DType::kBFloat16, DType::kHalf};
inline const char* type_name(DType type) {
  constexpr const char* kNames[kDTypes] = {"float32", "bfloat16", "float16"};
  return kNames[index(type)];
}

// Where element (kk, j) of panel p lies among the elements of a packed matrix of k rows: bfloat16
// has rows 2i and 2i + 1 in the halves of one lane.
inline int64_t place_of(const PanelMap& map, int64_t p, int64_t k, int64_t kk, int64_t j) {
  const int64_t rows = map.type == DType::kBFloat16 ? 2 : 1;
  const int64_t byte = map.offset_of(p, k) + map.row_offset(p, kk - kk % rows) +
                       j * map.lane_bytes() + kk % rows * size_of(map.type);
  return byte / size_of(map.type);
}
inline int64_t elements_of(const PanelMap& map, int64_t k) {
  return map.bytes(k) / size_of(map.type);
}

// The types of plain weights and of what is made of them.
struct Conversion {
  DType from, to;
};
inline constexpr Conversion kConversions[] = {{DType::kFloat, DType::kFloat},
                                              {DType::kFloat, DType::kBFloat16},
                                              {DType::kFloat, DType::kHalf},
                                              {DType::kBFloat16, DType::kBFloat16},
                                              {DType::kHalf, DType::kHalf}};

// Every table that this processor can run.
inline std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> found;
  for (int i = 0; i < kIsas; ++i) {
    if (const KernelTable* table = kernels_for(static_cast<Isa>(i))) found.push_back(table);
  }
  return found;
}

inline const char* cell_name(int cell) {
  constexpr const char* kNames[kCellKinds] = {"lstm", "gru", "rnn_tanh", "rnn_relu"};
  return kNames[cell];
}

}  // namespace rnnpack::check
