// Every schema and dispatch table. Fake kernels, autograd and vmap rules are registered from Python
// (src/rnnpack/ops).
#include "base/cpu.h"
#include "kernels/table.h"
#include "ops/infer.h"
#include "ops/packed.h"
#include "ops/train.h"

namespace rnnpack::ops {

STABLE_TORCH_LIBRARY(rnnpack, m) {
  m.def(
      "pack(int cell, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, "
      "Tensor? weight_hr, ScalarType? dtype=None) -> Tensor");
  m.def("check_packed(Tensor packed, int cell) -> (int, int, int)");
  // No autograd on purpose: a Python autograd kernel would run on every eager call. Where a
  // gradient is needed, `train` is called.
  m.def(
      "infer(Tensor input, Tensor? h_0, Tensor? c_0, Tensor[] weights, Tensor? lengths, Tensor? "
      "batch_sizes, int cell, "
      "int num_layers, int hidden_size, int proj_size, bool bidirectional, bool batch_first) -> "
      "(Tensor, Tensor, Tensor)");
  // The same for graphs of torch.jit.trace, which runs with and without gradients: it has autograd.
  m.def(
      "run(Tensor input, Tensor? h_0, Tensor? c_0, Tensor[] weights, Tensor? lengths, Tensor? "
      "batch_sizes, int cell, "
      "int num_layers, int hidden_size, int proj_size, bool bidirectional, bool batch_first) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "train(Tensor input, Tensor? h_0, Tensor? c_0, Tensor weight_ih, Tensor weight_hh, Tensor? "
      "bias_ih, Tensor? bias_hh, "
      "Tensor? weight_hr, Tensor? lengths, Tensor? batch_sizes, int cell, bool reverse, bool "
      "recompute, ScalarType? dtype=None) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "train_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, "
      "Tensor? h_0, Tensor? c_0, "
      "Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? weight_hr, "
      "Tensor? lengths, "
      "Tensor? batch_sizes, Tensor? output, Tensor reserve, int cell, bool reverse, bool "
      "recompute, int wanted, ScalarType? dtype=None) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(rnnpack, CPU, m) {
  m.impl("pack", TORCH_BOX(&pack));
  m.impl("check_packed", TORCH_BOX(&check_packed));
  m.impl("infer", TORCH_BOX(&infer));
  m.impl("run", TORCH_BOX(&infer));
  m.impl("train", TORCH_BOX(&train));
  m.impl("train_backward", TORCH_BOX(&train_backward));
}

}  // namespace rnnpack::ops

// What `rnnpack info` reports, through ctypes: no tensor is needed.
extern "C" {

__attribute__((visibility("default"))) const char* rnnpack_isa() {
  return rnnpack::isa_name(rnnpack::kernels().isa);
}
__attribute__((visibility("default"))) const char* rnnpack_cpu_feature_name(int i) {
  return rnnpack::cpu_feature_name(i);
}
__attribute__((visibility("default"))) int rnnpack_cpu_feature(int i) {
  return rnnpack::cpu_feature(i) ? 1 : 0;
}
__attribute__((visibility("default"))) int rnnpack_is_direct(int64_t rows) {
  return rnnpack::ops::is_direct(rows) ? 1 : 0;
}
}
