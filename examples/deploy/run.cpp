// Runs a compiled package without Python and compares its results with those that Python wrote.
//
// usage: run <rnnpack_native.so> <compiled.pt2> <expected.pt>
//
// Exit status: 0 if all results agree, 1 if one does not, 2 if something could not be loaded.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Of the largest expected value. Both sides run the same recurrent code; what is left is the
// rounding of the other operations, which Inductor may compute in another order.
constexpr double kTolerance = 1e-5;

// Registers torch.ops.rnnpack: the package holds no copy of the operators, it calls them by name.
void load_operators(const char* path) {
  if (dlopen(path, RTLD_NOW) == nullptr) {
    throw std::runtime_error(std::string("cannot load the operators: ") + dlerror());
  }
}

// A list of pairs (input, output), as torch.save wrote it.
c10::IValue load_pickle(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  return torch::jit::pickle_load(
      std::vector<char>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
}

bool agrees(const at::Tensor& output, const at::Tensor& expected) {
  if (output.sizes() != expected.sizes()) {
    std::cout << "got sizes " << output.sizes() << ", expected " << expected.sizes() << "\n";
    return false;
  }
  const double difference = output.sub(expected).abs().max().item().toDouble();
  const double scale = expected.abs().max().item().toDouble();
  std::cout << output.size(0) << " steps, " << output.size(1) << " rows: differs by " << difference
            << ", largest value " << scale << "\n";
  return difference <= kTolerance * scale;  // false for a NaN
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " <rnnpack_native.so> <compiled.pt2> <expected.pt>\n";
    return 2;
  }
  load_operators(argv[1]);  // before the package, which looks for them when it is loaded
  torch::inductor::AOTIModelPackageLoader model(argv[2]);
  const c10::IValue cases = load_pickle(argv[3]);
  bool good = true;
  for (const c10::IValue& pair : cases.toListRef()) {
    const auto& tensors = pair.toTupleRef().elements();
    const std::vector<at::Tensor> outputs = model.run({tensors[0].toTensor()});
    good = agrees(outputs.at(0), tensors[1].toTensor()) && good;
  }
  return good ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 2;
}
