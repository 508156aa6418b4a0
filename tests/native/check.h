// What the programs in this folder share: checks that are counted, buffers that betray a wrong
// access, random numbers.
#pragma once

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
