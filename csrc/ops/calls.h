// Eager calls by tensor handles, past torch's dispatcher, whose way from Python and back costs 5 us
// a call: docs/performance.md. Who calls them has seen to it that no gradient is needed and that no
// mode, transform or profiler waits for the op: csrc/python/calls.cpp.
//
// No header of torch is included here, and none is needed to call.
#pragma once

#include <cstdint>

struct AtenTensorOpaque;  // torch's name of an at::Tensor in C

namespace rnnpack {

using TensorHandle = AtenTensorOpaque*;

// A module's tensors. Each call takes the handles over, whatever comes of it.
struct CallTensors {
  TensorHandle input;
  TensorHandle h_0;  // null: zero
  TensorHandle c_0;
  const TensorHandle* weights;  // as for ops::infer
  int64_t weight_count;
};

struct CallStack {
  int64_t cell;
  int64_t layers;
  int64_t hidden_size;
  int64_t proj_size;
  bool bidirectional;
  bool batch_first;
};

// Python's lock, which the caller holds: a call gives it up while it computes, if that takes longer
// than giving it up and winning it back.
struct PythonLock {
  void* (*give_up)();
  void (*win_back)(void* token);
};

// Whether a tensor's memory holds its numbers. Only torch can tell where it may stand for the
// negated ones: the imaginary part of a conjugate does, a view of every other number.
enum class Plainness { kNo, kAskTorch, kYes };

// Functions that return true write new handles, which the caller then owns; false: refused, for
// whatever reason, and nothing is written.
struct Calls {
  // results: output, h_n and, if the cell has a cell state, c_n.
  bool (*infer)(const CallTensors& tensors, const CallStack& stack, const PythonLock& lock,
                TensorHandle* results);
  // results: h and, if the cell has a cell state, c.
  bool (*cell)(const CallTensors& tensors, int64_t cell, const PythonLock& lock,
               TensorHandle* results);
  // stream: from rnnpack_stream_new; input and result as in ops::run_stream.
  bool (*stream)(void* stream, TensorHandle input, int64_t dim, const PythonLock& lock,
                 TensorHandle* result);
  // Whether an input is of a dtype and device that the calls take.
  bool (*takes)(TensorHandle input);
  Plainness (*plainness)(TensorHandle tensor);
  void (*release)(TensorHandle handle);
};

}  // namespace rnnpack

extern "C" __attribute__((visibility("default"))) const rnnpack::Calls* rnnpack_calls();
