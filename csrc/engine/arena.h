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
  // A page between what two threads write: prefetchers, which end with the page, would else fetch
  // lines that the other thread is about to write, and each of them would have to be won back.
  void leave_page() { used_ += kPageBytes; }
  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kPageBytes = 4096;

  char* memory_;
  int64_t used_ = 0;
};

}  // namespace rnnpack
