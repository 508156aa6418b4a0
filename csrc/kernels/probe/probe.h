// What the machine can do at most: the two numbers from which the benchmark computes the limit of a
// case, and how far apart its cores are.
//
// The first two start `threads` threads of their own, let them go at once, and return the sum of
// the threads' rates. They share nothing with the engine, so a mistake there cannot raise or lower
// the bar that it is measured against. Plain C names: the benchmark finds them through ctypes, in
// the same library that holds the engine.
#pragma once

#include <cstdint>

extern "C" {

// Single precision operations per second of multiply-adds that never leave the registers, in the
// widest vectors of this CPU; a multiply-add counts as two. `seconds` is how long each thread
// works. Returns 0 for threads < 1.
__attribute__((visibility("default"))) double rnnpack_probe_flops(int32_t threads, double seconds);

// Bytes per second read, by threads that each sum a buffer of their own over and over, front to
// back.
//
// bytes_per_thread: rounded up to whole blocks of 512 bytes. Small buffers stay in the first cache
// and give its speed, large ones that of memory. Returns 0 for threads < 1, bytes_per_thread < 1,
// or a buffer that cannot be had.
__attribute__((visibility("default"))) double rnnpack_probe_read_bandwidth(int64_t bytes_per_thread,
                                                                           int32_t threads,
                                                                           double seconds);

// Seconds from a write of one thread until another one sees it, in the quickest of the rounds that
// two threads play for `seconds`. It is what each barrier of a time step pays,
// and on a virtual machine it changes by a factor of four as the host moves processors.
__attribute__((visibility("default"))) double rnnpack_probe_handover(double seconds);
}
