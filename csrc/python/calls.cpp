// The Python module rnnpack.ops._calls: modules' eager calls, from Python objects to tensor handles
// and back. What it offers is told in src/rnnpack/ops/_calls.pyi.
//
// It knows torch through Python alone (two functions that turn a tensor into a handle and back) and
// the engine through a table of functions, so it is linked to neither.
#include <Python.h>

#include <array>

#include "kernels/cell/kind.h"
#include "ops/calls.h"

namespace {

using rnnpack::TensorHandle;

// A reference to an object, given back at the end of the scope.
class Object {
 public:
  Object() = default;
  explicit Object(PyObject* owned) : object_(owned) {}
  static Object borrowed(PyObject* object) { return Object(Py_NewRef(object)); }
  Object(Object&& other) noexcept : object_(other.take()) {}
  Object& operator=(Object&& other) noexcept {
    PyObject* before = object_;
    object_ = other.take();
    Py_XDECREF(before);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* take() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// What connect() is given; kept as long as the process lives.
struct {
  const rnnpack::Calls* calls = nullptr;
  // The classes of plain tensors.
  PyObject* tensor = nullptr;
  PyObject* parameter = nullptr;
  // From a tensor to a capsule with a new handle; from a list of capsules to a list of tensors,
  // which take the handles over.
  PyObject* to_handle = nullptr;
  PyObject* from_handles = nullptr;
  // Of a tensor: whether it stands for its negated numbers.
  PyObject* is_negated = nullptr;
  // Whether gradients are recorded.
  PyObject* grad_mode = nullptr;
  // A tuple of functions: whether somebody waits to see the op.
  PyObject* watchers = nullptr;
} torch;

void* give_up_lock() { return PyEval_SaveThread(); }
void win_lock_back(void* thread) { PyEval_RestoreThread(static_cast<PyThreadState*>(thread)); }
constexpr rnnpack::PythonLock kLock{&give_up_lock, &win_lock_back};

// Declined: the call is one for the long way. An error on the way here is none of the user's: the
// long way makes it again, with its message.
PyObject* decline() {
  // Not so an interrupt that arrived meanwhile.
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return nullptr;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// Of a new reference to what a function returned; a call that failed counts as true.
bool is_true(PyObject* returned) {
  const Object result(returned);
  return !result || PyObject_IsTrue(result.get()) != 0;
}

bool is_watched() {
  const Py_ssize_t count = PyTuple_Size(torch.watchers);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (is_true(PyObject_CallNoArgs(PyTuple_GetItem(torch.watchers, i)))) return true;
  }
  return false;
}

bool requires_grad(PyObject* tensor) {
  const Object answer(PyObject_GetAttrString(tensor, "requires_grad"));
  return answer.get() != Py_False;
}

// The handles of a call, released at the end unless the call takes them over.
template <int kMost>
class Handles {
 public:
  explicit Handles(bool grad_mode) : grad_mode_(grad_mode) {}
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (int i = 0; i < count_; ++i) torch.calls->release(handles_[static_cast<size_t>(i)]);
  }

  // A handle of `object`; null: it is no plain tensor, or needs a gradient.
  TensorHandle add(PyObject* object) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (count_ == kMost || (type != torch.tensor && type != torch.parameter) ||
        (grad_mode_ && requires_grad(object)))
      return nullptr;
    const Object capsule(PyObject_CallFunctionObjArgs(torch.to_handle, object, nullptr));
    if (!capsule) return nullptr;
    auto* handle = static_cast<TensorHandle>(PyCapsule_GetPointer(capsule.get(), nullptr));
    if (handle == nullptr) return nullptr;
    handles_[static_cast<size_t>(count_++)] = handle;
    const rnnpack::Plainness plain = torch.calls->plainness(handle);
    return plain == rnnpack::Plainness::kYes ||
                   (plain == rnnpack::Plainness::kAskTorch &&
                    !is_true(PyObject_CallFunctionObjArgs(torch.is_negated, object, nullptr)))
               ? handle
               : nullptr;
  }

  int count() const { return count_; }
  bool grad_mode() const { return grad_mode_; }
  const TensorHandle* from(int first) const { return handles_.data() + first; }
  void taken_over() { count_ = 0; }

 private:
  std::array<TensorHandle, kMost> handles_;
  int count_ = 0;
  bool grad_mode_;
};

// Input, two states, and weights of up to 12 layers and directions.
using CallHandles = Handles<3 + 5 * 12>;

// A list of tensors that take the handles over.
Object to_tensors(const TensorHandle* handles, int count) {
  Object capsules(PyList_New(count));
  for (int i = 0; i < count && capsules; ++i) {
    PyObject* capsule = PyCapsule_New(handles[i], nullptr, nullptr);
    if (capsule == nullptr || PyList_SetItem(capsules.get(), i, capsule) != 0) return Object();
  }
  return capsules
             ? Object(PyObject_CallFunctionObjArgs(torch.from_handles, capsules.get(), nullptr))
             : Object();
}

// Adds hx: None, one state, or a pair of them.
bool add_states(PyObject* hx, bool has_cell_state, CallHandles& handles,
                rnnpack::CallTensors& tensors) {
  if (hx == Py_None) return true;
  if (!has_cell_state) return (tensors.h_0 = handles.add(hx)) != nullptr;
  if (!PyTuple_CheckExact(hx) && !PyList_CheckExact(hx)) return false;
  if (PySequence_Size(hx) != 2) return false;
  const Object h(PySequence_GetItem(hx, 0)), c(PySequence_GetItem(hx, 1));
  return h && c && (tensors.h_0 = handles.add(h.get())) != nullptr &&
         (tensors.c_0 = handles.add(c.get())) != nullptr;
}

// A weight by its name: in the module's dictionary of parameters or buffers, or an attribute where
// something computes it (pruning, norms, parametrizations). That is asked for last, and not at all
// where gradients are recorded: the long way would compute it a second time.
Object find_weight(PyObject* module, PyObject* home, PyObject* name, bool grad_mode) {
  PyObject* found = PyDict_GetItemWithError(home, name);
  if (found != nullptr) return Object::borrowed(found);
  return grad_mode || PyErr_Occurred() ? Object() : Object(PyObject_GetAttr(module, name));
}

// By the first weight, which tells it soonest.
bool in_training(PyObject* home, PyObject* names) {
  const Object name(PySequence_GetItem(names, 0));
  PyObject* weight =
      name && PyDict_Check(home) ? PyDict_GetItemWithError(home, name.get()) : nullptr;
  return weight == nullptr || requires_grad(weight);
}

bool add_weights(PyObject* module, PyObject* home, PyObject* names, CallHandles& handles,
                 rnnpack::CallTensors& tensors) {
  if (!PyDict_Check(home)) return false;
  const Py_ssize_t count = PySequence_Size(names);
  const int first = handles.count();
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Object name(PySequence_GetItem(names, i));
    if (!name) return false;
    const Object weight = find_weight(module, home, name.get(), handles.grad_mode());
    if (!weight || handles.add(weight.get()) == nullptr) return false;
  }
  tensors.weights = handles.from(first);
  tensors.weight_count = count;
  return count > 0;
}

// The arguments that infer() and cell() start with.
enum Argument { kModule, kHome, kNames, kInput, kHx, kCell, kShared };

// Collects a call's tensors, makes it and gives the state, h or (h, c); a layer's call gives
// (output, state). call(tensors, cell, results) -> whether it was done.
template <class Call>
PyObject* run(PyObject* const* arguments, const Call& call, bool with_output) {
  const long cell = PyLong_AsLong(arguments[kCell]);
  if (torch.calls == nullptr || cell < 0 || cell >= rnnpack::kCellKinds) return decline();
  const bool grad_mode = is_true(PyObject_CallNoArgs(torch.grad_mode));
  if (grad_mode && in_training(arguments[kHome], arguments[kNames])) return decline();
  // A watcher has no error of its own: this one is of a signal's handler.
  if (is_watched()) return PyErr_Occurred() != nullptr ? nullptr : decline();
  const bool has_cell_state = traits(static_cast<rnnpack::CellKind>(cell)).has_cell_state;
  CallHandles handles(grad_mode);
  rnnpack::CallTensors tensors{};
  tensors.input = handles.add(arguments[kInput]);
  if (tensors.input == nullptr || !torch.calls->takes(tensors.input) ||
      !add_states(arguments[kHx], has_cell_state, handles, tensors) ||
      !add_weights(arguments[kModule], arguments[kHome], arguments[kNames], handles, tensors))
    return decline();

  TensorHandle results[3] = {};
  handles.taken_over();
  if (!call(tensors, cell, results)) return decline();

  const int states = has_cell_state ? 2 : 1;
  const Object made = to_tensors(results, states + (with_output ? 1 : 0));
  if (!made) return nullptr;
  const auto at = [&made](Py_ssize_t i) { return PyList_GetItem(made.get(), i); };  // borrowed
  if (!with_output) return states == 2 ? PyTuple_Pack(2, at(0), at(1)) : Py_NewRef(at(0));
  if (states == 1) return PyTuple_Pack(2, at(0), at(1));
  const Object pair(PyTuple_Pack(2, at(1), at(2)));
  return pair ? PyTuple_Pack(2, at(0), pair.get()) : nullptr;
}

bool expect(const char* name, Py_ssize_t expected, Py_ssize_t came) {
  if (expected == came) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, got %zd", name, expected, came);
  return false;
}

PyObject* infer(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (!expect("infer", kShared + 5, count)) return nullptr;
  PyObject* const* stack_arguments = arguments + kShared;
  rnnpack::CallStack stack{};
  stack.layers = PyLong_AsLongLong(stack_arguments[0]);
  stack.hidden_size = PyLong_AsLongLong(stack_arguments[1]);
  stack.proj_size = PyLong_AsLongLong(stack_arguments[2]);
  stack.bidirectional = PyObject_IsTrue(stack_arguments[3]) == 1;
  stack.batch_first = PyObject_IsTrue(stack_arguments[4]) == 1;
  if (PyErr_Occurred()) return decline();
  const auto call = [&stack](const rnnpack::CallTensors& tensors, long cell,
                             TensorHandle* results) {
    stack.cell = cell;
    return torch.calls->infer(tensors, stack, kLock, results);
  };
  return run(arguments, call, true);
}

PyObject* cell(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (!expect("cell", kShared, count)) return nullptr;
  const auto call = [](const rnnpack::CallTensors& tensors, long cell, TensorHandle* results) {
    return torch.calls->cell(tensors, cell, kLock, results);
  };
  return run(arguments, call, false);
}

PyObject* stream(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (!expect("stream", 3, count)) return nullptr;
  void* address = PyLong_AsVoidPtr(arguments[0]);
  const int64_t dim = PyLong_AsLongLong(arguments[2]);
  if (torch.calls == nullptr || address == nullptr) return decline();
  Handles<1> handles(false);
  TensorHandle result = nullptr;
  const TensorHandle input = handles.add(arguments[1]);
  if (input == nullptr) return decline();
  handles.taken_over();
  if (!torch.calls->stream(address, input, dim, kLock, &result)) return decline();
  const Object made = to_tensors(&result, 1);
  return made ? Py_NewRef(PyList_GetItem(made.get(), 0)) : nullptr;
}

PyObject* connect(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (!expect("connect", 8, count)) return nullptr;
  const auto* calls = static_cast<const rnnpack::Calls*>(PyLong_AsVoidPtr(arguments[0]));
  if (calls == nullptr || !PyTuple_Check(arguments[7])) {
    PyErr_SetString(
        PyExc_TypeError,
        "connect() takes the address of rnnpack_calls()'s table first and a tuple last");
    return nullptr;
  }
  PyObject** const kept[] = {&torch.tensor,       &torch.parameter,  &torch.to_handle,
                             &torch.from_handles, &torch.is_negated, &torch.grad_mode,
                             &torch.watchers};
  for (int i = 0; i < 7; ++i) *kept[i] = Py_NewRef(arguments[i + 1]);
  torch.calls = calls;
  Py_RETURN_NONE;
}

template <PyObject* (*kFunction)(PyObject*, PyObject* const*, Py_ssize_t)>
PyCFunction fastcall() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kFunction));
}

PyMethodDef methods[] = {{"connect", fastcall<connect>(), METH_FASTCALL, nullptr},
                         {"infer", fastcall<infer>(), METH_FASTCALL, nullptr},
                         {"cell", fastcall<cell>(), METH_FASTCALL, nullptr},
                         {"stream", fastcall<stream>(), METH_FASTCALL, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "_calls",
                      "Modules' eager calls by tensor handles.",
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__calls() { return PyModule_Create(&module); }
