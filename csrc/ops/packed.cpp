#include "ops/packed.h"

#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "ops/weights.h"

namespace rnnpack::ops {

namespace {

constexpr char kMagic[8] = "rnnpack";
constexpr uint32_t kVersion = 1;
constexpr int64_t kLargestSize =
    int64_t{1} << 24;  // of any dimension; keeps products of header fields far from overflow

// Fletcher's sums over 32-bit words, modulo 2^64 and so without a division.
struct Sums {
  uint64_t low = 0, high = 0;

  void add(const void* bytes, int64_t count) {
    for (int64_t i = 0; i < count; i += 4) {
      uint32_t word;
      std::memcpy(&word, static_cast<const char*>(bytes) + i, sizeof word);
      low += word;
      high += low;
    }
  }
};

// Of the header without this sum, and of the panels. The factor is even: each word then counts an
// odd number of times, so any one changed word gives another sum, and so do any two that changed
// places within 8 GiB.
uint64_t checksum(PackedHeader header, const void* panels, int64_t bytes) {
  constexpr uint64_t kEvenFactor = 0x9e3779b97f4a7c16u;
  static_assert(sizeof header % 4 == 0);
  header.checksum = 0;
  Sums sums;
  sums.add(&header, sizeof header);
  sums.add(panels, bytes);
  return sums.high * kEvenFactor + sums.low;
}

PackedHeader header_of(const void* packed) {
  PackedHeader header;
  std::memcpy(&header, packed, sizeof header);
  return header;
}

}  // namespace

bool is_packed(const Tensor& tensor) { return type_of(tensor) == ScalarType::Byte; }

LayerShape packed_shape(const Tensor& packed) {
  check_tensor(packed, "packed weights", ScalarType::Byte, 1);
  RNNPACK_CHECK(
      packed.size(0) >= kPackedHeaderBytes && packed.stride(0) == 1 &&
          reinterpret_cast<uintptr_t>(packed.data_ptr()) % 4 == 0,
      "packed weights must be a dense tensor of bytes as made by rnnpack.pack, got shape ",
      shape_text(packed));
  const PackedHeader header = header_of(packed.data_ptr());
  RNNPACK_CHECK(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0,
                "these bytes are not packed weights; make them with rnnpack.pack");
  RNNPACK_CHECK(header.version == kVersion, "packed weights are of version ", header.version,
                ", this build reads version ", kVersion, "; pack the model again");
  RNNPACK_CHECK(header.cell >= 0 && header.cell < kCellKinds && header.dtype >= 0 &&
                    header.dtype < kDTypes && header.input >= 0 && header.input <= kLargestSize &&
                    header.hidden > 0 && header.hidden <= kLargestSize && header.projection >= 0 &&
                    header.projection < header.hidden,
                "the header of the packed weights is damaged; pack the model again");
  const LayerShape shape{static_cast<CellKind>(header.cell),
                         header.input,
                         header.hidden,
                         header.projection,
                         kGroup,
                         kGroup,
                         static_cast<DType>(header.dtype)};
  const int64_t bytes = kPackedHeaderBytes + shape.packed_bytes();
  RNNPACK_CHECK(packed.size(0) == bytes, "packed weights are damaged: expected ", bytes,
                " bytes, got ", packed.size(0));
  return shape;
}

const void* packed_panels(const void* packed) {
  return static_cast<const char*>(packed) + kPackedHeaderBytes;
}

DType packed_storage(const void* packed) { return static_cast<DType>(header_of(packed).dtype); }

Tensor pack(int64_t cell, const Tensor& weight_ih, const Tensor& weight_hh,
            const std::optional<Tensor>& bias_ih, const std::optional<Tensor>& bias_hh,
            const std::optional<Tensor>& weight_hr, std::optional<ScalarType> dtype) {
  const auto pointer = [](const std::optional<Tensor>& tensor) {
    return tensor ? &*tensor : nullptr;
  };
  const WeightTensors tensors{&weight_ih, &weight_hh, pointer(bias_ih), pointer(bias_hh),
                              pointer(weight_hr)};
  LayerShape shape = check_weights(cell_kind(cell), tensors);
  shape.storage = panels_type(weight_ih, dtype);
  RNNPACK_CHECK(std::max(shape.input, shape.hidden) <= kLargestSize, "sizes above ", kLargestSize,
                " cannot be packed");

  Dense dense;
  const int64_t bytes = shape.packed_bytes();
  Tensor packed = empty({kPackedHeaderBytes + bytes}, ScalarType::Byte);
  prefer_huge_pages(packed.data_ptr(), kPackedHeaderBytes + bytes);
  std::memset(packed.data_ptr(), 0, static_cast<size_t>(kPackedHeaderBytes + bytes));
  void* panels = const_cast<void*>(packed_panels(packed.data_ptr()));
  pack_layer(kernels(), shape, plain_weights(tensors, dense), panels);

  PackedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.cell = static_cast<int32_t>(shape.cell);
  header.dtype = static_cast<int32_t>(shape.storage);
  header.input = shape.input;
  header.hidden = shape.hidden;
  header.projection = shape.projection;
  header.checksum = checksum(header, panels, bytes);
  std::memcpy(packed.data_ptr(), &header, sizeof header);
  return packed;
}

std::tuple<int64_t, int64_t, int64_t> check_packed(const Tensor& packed, int64_t cell) {
  const LayerShape shape = packed_shape(packed);
  RNNPACK_CHECK(shape.cell == cell_kind(cell), "packed weights are of cell ",
                static_cast<int>(shape.cell), ", expected cell ", cell);
  const PackedHeader header = header_of(packed.data_ptr());
  RNNPACK_CHECK(
      checksum(header, packed_panels(packed.data_ptr()), shape.packed_bytes()) == header.checksum,
      "packed weights are damaged: their checksum differs; pack the model again");
  return {shape.input, shape.hidden, shape.projection};
}

}  // namespace rnnpack::ops
