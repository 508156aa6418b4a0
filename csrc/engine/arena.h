// Lays out a call's scratch: run once without memory to count, once with it to hand out. Contents
// are undefined before and after.
#pragma once

#include <cstdint>

#include "base/align.h"

namespace rnnpack {

class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    char* place = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kCacheLine);
    return reinterpret_cast<T*>(place);
  }
  int64_t used() const { return used_; }

 private:
  char* memory_;
  int64_t used_ = 0;
};

}  // namespace rnnpack
