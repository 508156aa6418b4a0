// Packing of whole layers, shared among the members of a team.
#pragma once

#include "engine/engine.h"

namespace rnnpack {

// Part `member` of `parts` of pack_layer; the parts may run at the same time. A member that later
// works on share `index` of the blocks packs just those, so that they are in its own cache.
void pack_share(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                int64_t parts, int64_t member, void* packed);

// A matrix [k, columns] with unit column stride.
struct PlainMatrix {
  const void* data;
  DType dtype;
  int64_t ld, k, columns;
};

// Share `member` of `parts` of a matrix in panels of its columns, as products with its transpose
// take it: plain_panels(columns, group, storage).
void pack_columns_share(const KernelTable& kernels, const PlainMatrix& matrix, DType storage,
                        int32_t group, int64_t parts, int64_t member, void* panels);

}  // namespace rnnpack
