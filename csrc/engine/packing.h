// Packing of whole layers, shared among the members of a team.
#pragma once

#include "engine/engine.h"

namespace rnnpack {

// Part `index` of `parts` of pack_layer; the parts may run at the same time. A member that later
// works on share `index` of the blocks packs just those, so that they are in its own cache.
void pack_share(const KernelTable& kernels, const LayerShape& shape, const LayerWeights& weights,
                int64_t parts, int64_t index, float* packed);

// Share `index` of `parts` of a matrix [k, columns] in panels of its columns, as products with its
// transpose take it: plain_panels(columns, group).
void pack_columns_share(const KernelTable& kernels, const float* w, int64_t ld, int64_t k,
                        int64_t columns, int32_t group, int64_t parts, int64_t index,
                        float* panels);

}  // namespace rnnpack
