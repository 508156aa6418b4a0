// Packed weights as a tensor: one dimension of bytes, a header and what the engine reads.
#pragma once

#include "engine/problem.h"
#include "ops/tensors.h"

namespace rnnpack::ops {

// In the byte order of the machine; the same on every ISA.
struct PackedHeader {
  char magic[8];
  uint32_t version;
  int32_t cell;
  int32_t dtype;  // of the panels: DType
  int32_t zero;
  int64_t input, hidden, projection;
  uint64_t checksum;  // of the rest; read by check_packed, not on every call
};

inline constexpr int64_t kPackedHeaderBytes = kCacheLine;
static_assert(sizeof(PackedHeader) <= kPackedHeaderBytes);

bool is_packed(const Tensor& tensor);

// The sizes in the header, after checking that this is a packed tensor of ours and has the length
// they ask for.
LayerShape packed_shape(const Tensor& packed);

// Of memory that packed_shape has checked: where the engine's part starts, and the type of its
// panels.
const void* packed_panels(const void* packed);
DType packed_storage(const void* packed);

// Op: packs one layer and direction. dtype: of the panels; none: that of the weights. The bias is
// float32.
Tensor pack(int64_t cell, const Tensor& weight_ih, const Tensor& weight_hh,
            const std::optional<Tensor>& bias_ih, const std::optional<Tensor>& bias_hh,
            const std::optional<Tensor>& weight_hr, std::optional<ScalarType> dtype);

// Op: input size, hidden size and projection of a packed tensor; fails if its checksum shows
// damage.
std::tuple<int64_t, int64_t, int64_t> check_packed(const Tensor& packed, int64_t cell);

}  // namespace rnnpack::ops
