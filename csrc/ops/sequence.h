// Sequence arguments of an op (lengths, batch_sizes) as the engine's rows.
#pragma once

#include "engine/problem.h"
#include "ops/tensors.h"

namespace rnnpack::ops {

// Owns the tables that its Rows point at. Input is [L, N, F] (or [N, L, F] if batch_first), or
// [sum(batch_sizes), F]; one_step: or [N, F] without batch_sizes.
class Sequence {
 public:
  Sequence(const Tensor& input, bool batch_first, const std::optional<Tensor>& lengths,
           const std::optional<Tensor>& batch_sizes, bool one_step = false);
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const Rows& rows() const { return rows_; }
  bool packed() const { return packed_; }

  // Rows of a float32 tensor whose leading dimensions are the input's and whose last is dense.
  SequenceView view(const Tensor& tensor) const;
  // A new tensor with the input's leading dimensions and `width` as the last.
  Tensor empty_like_input(int64_t width, ScalarType dtype) const;
  // Zeros in a float32 tensor at all times past a row's length.
  void zero_padding(const Tensor& tensor) const;

 private:
  void read_lengths(const Tensor& lengths);
  void read_batch_sizes(const Tensor& batch_sizes, int64_t total);

  Rows rows_{};
  bool batch_first_;
  bool packed_;
  bool one_step_;
  int64_t total_ = 0;
  std::vector<int64_t> lengths_, active_, row_start_, row_offset_, time_index_, row_index_;
};

}  // namespace rnnpack::ops
