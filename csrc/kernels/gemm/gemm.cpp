#include "kernels/gemm/gemm.h"

#include <algorithm>

namespace rnnpack {

namespace {

// The groups that a product's panels lie in, in the order in which it takes them.
class Groups {
 public:
  explicit Groups(const Product& product)
      : p_(product),
        first_(product.first / product.map.group),
        count_(product.first < product.last ? ceil_div(product.last, product.map.group) - first_
                                            : 0) {}

  int64_t count() const { return count_; }
  // Of group number i, the product's panels.
  int64_t panels(int64_t i) const { return end(group(i)) - begin(group(i)); }
  // The tile of all rows and `panels` of them, from the first sum on.
  Tile tile(int64_t i, int64_t skipped, int64_t panels) const {
    const PanelMap& map = p_.map;
    const int64_t g = group(i), first = begin(g) + skipped;
    Tile tile;
    tile.first_k = 0;
    tile.k = std::min(kLongestSum, p_.k);
    tile.a = p_.a;
    tile.b = static_cast<const char*>(p_.b) + map.group_offset(g, p_.k) +
             (first - g * map.group) * kPanel * map.lane_bytes();
    tile.b_stride = map.group_stride(g);
    tile.panels = panels;
    map.columns(first, panels, tile.columns);
    tile.bias = p_.bias;
    tile.c = p_.c;
    return tile;
  }
  // Moves a tile to the next part of its sums; false after the last one.
  bool next_sum(Tile& tile) const {
    if (tile.first_k + kLongestSum >= p_.k) return false;
    tile.first_k += kLongestSum;
    tile.k = std::min(kLongestSum, p_.k - tile.first_k);
    tile.b = static_cast<const char*>(tile.b) +
             p_.map.stored_rows(kLongestSum) * tile.b_stride * p_.map.lane_bytes();
    tile.bias = nullptr;
    return true;
  }

 private:
  int64_t group(int64_t i) const { return p_.backwards ? first_ + count_ - 1 - i : first_ + i; }
  int64_t begin(int64_t g) const { return std::max(p_.first, g * p_.map.group); }
  int64_t end(int64_t g) const { return std::min(p_.last, (g + 1) * p_.map.group); }

  const Product& p_;
  const int64_t first_, count_;
};

// body(tile) for every tile of all rows, at most `width` panels wide, in the order of make_tiles.
template <class Body>
void for_each_tile(const Product& product, int64_t width, const Body& body) {
  const Groups groups(product);
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t panels = groups.panels(g);
    for (int64_t done = 0; done < panels; done += width) {
      Tile tile = groups.tile(g, done, std::min(width, panels - done));
      do {
        body(tile);
      } while (groups.next_sum(tile));
    }
  }
}

void run(const GemmKernels& kernels, int64_t rows, const Tile& tile) {
  kernels.tile[rows - 1][tile.panels - 1](tile);
}

}  // namespace

void multiply(const GemmKernels& kernels, const Product& product) {
  if (product.rows == 0) return;
  // Tiles of nearly equal height: 9 rows run as 5 + 4, not as 6 and a slow 3.
  const int64_t heights = ceil_div(product.rows, kernels.max_rows);
  const int64_t height = product.rows / heights;
  const int64_t taller = product.rows % heights;

  // As wide as a group, which is read in one stream. Panels outside, rows inside: they are in a
  // near cache when the further tiles read them.
  for_each_tile(product, kMaxTilePanels, [&](Tile& tile) {
    for (int64_t t = 0; t < heights; ++t) {
      const int64_t rows = height + (t < taller ? 1 : 0);
      run(kernels, rows, tile);
      tile.a += rows;
      tile.c += rows;
    }
    tile.a = product.a;
    tile.c = product.c;
  });
}

int64_t tile_count(const Product& product, int64_t width) {
  int64_t count = 0;
  for_each_tile(product, width, [&](const Tile&) { ++count; });
  return count;
}

void make_tiles(const Product& product, int64_t width, Tile* tiles) {
  for_each_tile(product, width, [&](const Tile& tile) { *tiles++ = tile; });
}

void multiply_pipelined(const GemmKernels& kernels, int64_t rows, const Tiles& streamed,
                        const Tiles& computed) {
  const Tile* at = streamed.first;
  const auto stream_alone = [&](const Tile* end) {
    for (; at < end; ++at) run(kernels, rows, *at);
  };
  for (int64_t i = 0; i < computed.count; ++i) {
    const Tile& tile = computed.first[i];
    const auto& pipelined = kernels.pipelined[rows - 1][tile.panels - 1];
    const Tile* const end = streamed.first + streamed.count * (i + 1) / computed.count;
    // Streamed tiles that no kernel takes (the few panels of a last block) run alone.
    while (at < end && pipelined[at->panels - 1] == nullptr) stream_alone(at + 1);
    const Tile* const from = at;
    while (at < end && at->panels == from->panels) ++at;
    pipelined[at > from ? from->panels - 1 : kMaxTilePanels - 1](tile, from, at - from);
    stream_alone(end);
  }
  stream_alone(streamed.first + streamed.count);
}

}  // namespace rnnpack
