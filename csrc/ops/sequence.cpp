#include "ops/sequence.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace rnnpack::ops {

namespace {

std::vector<int64_t> int64_values(const Tensor& tensor, const char* name) {
  check_tensor(tensor, name, ScalarType::Long, 1);
  std::vector<int64_t> values(static_cast<size_t>(tensor.size(0)));
  const int64_t* first = static_cast<const int64_t*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.size(0); ++i)
    values[static_cast<size_t>(i)] = first[i * tensor.stride(0)];
  return values;
}

}  // namespace

Sequence::Sequence(const Tensor& input, bool batch_first, const std::optional<Tensor>& lengths,
                   const std::optional<Tensor>& batch_sizes, bool one_step)
    : batch_first_(batch_first),
      packed_(batch_sizes.has_value()),
      one_step_(one_step && !packed_ && !lengths && input.dim() == 2) {
  if (packed_) {
    RNNPACK_CHECK(!lengths,
                  "lengths and batch_sizes exclude each other: a packed sequence tells its lengths "
                  "by batch_sizes");
    check_floating(input, "packed input", 2);
    read_batch_sizes(*batch_sizes, input.size(0));
  } else if (one_step_) {
    check_floating(input, "input", 2);
    rows_.steps = 1;
    rows_.count = input.size(0);
  } else {
    check_floating(input, "input", 3);
    rows_.steps = input.size(batch_first ? 1 : 0);
    rows_.count = input.size(batch_first ? 0 : 1);
    if (lengths) read_lengths(*lengths);
  }
}

void Sequence::read_lengths(const Tensor& lengths) {
  const std::vector<int64_t> given = int64_values(lengths, "lengths");
  const int64_t* values = given.data();
  check_sizes(lengths, "lengths", {rows_.count});
  for (int64_t r = 0; r < rows_.count; ++r) {
    RNNPACK_CHECK(values[r] >= 0 && values[r] <= rows_.steps, "lengths[", r,
                  "] must be from 0 to seq_len = ", rows_.steps, ", got ", values[r]);
  }
  row_index_.resize(static_cast<size_t>(rows_.count));
  std::iota(row_index_.begin(), row_index_.end(), 0);
  std::stable_sort(row_index_.begin(), row_index_.end(),
                   [values](int64_t a, int64_t b) { return values[a] > values[b]; });
  for (const int64_t r : row_index_) lengths_.push_back(values[r]);

  int64_t running = rows_.count, before = 0;
  for (int64_t s = 0; s < rows_.steps; ++s) {
    while (running > 0 && lengths_[static_cast<size_t>(running - 1)] <= s) --running;
    active_.push_back(running);
    row_start_.push_back(before);
    before += running;
  }
  rows_.lengths = lengths_.data();
  rows_.active = active_.data();
  rows_.row_start = row_start_.data();
  rows_.row_index = row_index_.data();
}

void Sequence::read_batch_sizes(const Tensor& batch_sizes, int64_t total) {
  const std::vector<int64_t> given = int64_values(batch_sizes, "batch_sizes");
  const int64_t* values = given.data();
  rows_.steps = batch_sizes.size(0);
  RNNPACK_CHECK(rows_.steps > 0, "batch_sizes must have at least one step");
  rows_.count = values[0];
  total_ = total;
  int64_t before = 0;
  for (int64_t s = 0; s < rows_.steps; ++s) {
    RNNPACK_CHECK(values[s] > 0 && (s == 0 || values[s] <= values[s - 1]),
                  "batch_sizes must be positive and not increasing, got ", values[s], " at step ",
                  s);
    active_.push_back(values[s]);
    row_start_.push_back(before);
    before += values[s];
    RNNPACK_CHECK(before <= total, "batch_sizes add up to more than the ", total,
                  " rows of the packed input");
  }
  RNNPACK_CHECK(before == total, "batch_sizes add up to ", before, ", but the packed input has ",
                total, " rows");
  lengths_.assign(static_cast<size_t>(rows_.count), 0);
  for (const int64_t running : active_) {
    for (int64_t r = 0; r < running; ++r) ++lengths_[static_cast<size_t>(r)];
  }
  row_offset_.assign(static_cast<size_t>(rows_.count), 0);
  for (size_t r = 1; r < row_offset_.size(); ++r)
    row_offset_[r] = row_offset_[r - 1] + lengths_[r - 1];
  time_index_ = row_start_;
  rows_.row_offset = row_offset_.data();
  rows_.lengths = lengths_.data();
  rows_.active = active_.data();
  rows_.row_start = row_start_.data();
  rows_.time_index = time_index_.data();
}

SequenceView Sequence::view(const Tensor& tensor) const {
  if (packed_) return {floats(tensor), tensor.stride(0), tensor.stride(0)};
  if (one_step_) return {floats(tensor), 0, tensor.stride(0)};
  return {floats(tensor), tensor.stride(batch_first_ ? 1 : 0), tensor.stride(batch_first_ ? 0 : 1)};
}

Tensor Sequence::empty_like_input(int64_t width, ScalarType dtype) const {
  if (packed_) return empty({total_, width}, dtype);
  if (one_step_) return empty({rows_.count, width}, dtype);
  return batch_first_ ? empty({rows_.count, rows_.steps, width}, dtype)
                      : empty({rows_.steps, rows_.count, width}, dtype);
}

void Sequence::zero_padding(const Tensor& tensor) const {
  if (packed_ || rows_.lengths == nullptr) return;
  const SequenceView rows = view(tensor);
  const size_t bytes = static_cast<size_t>(tensor.size(2)) * sizeof(float);
  for (int64_t r = 0; r < rows_.count; ++r) {
    for (int64_t t = rows_.length(r); t < rows_.steps; ++t)
      std::memset(rows_.at(rows, t, r), 0, bytes);
  }
}

}  // namespace rnnpack::ops
