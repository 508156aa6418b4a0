// What the engine must know of a cell: its gates, and where each gate's two products go. Equations:
// lstm.h, gru.h, rnn.h.
#pragma once

#include <cstdint>

namespace rnnpack {

enum class CellKind : int32_t { kLstm = 0, kGru = 1, kRnnTanh = 2, kRnnRelu = 3 };
inline constexpr int kCellKinds = 4;

inline constexpr int kMaxGates = 4;
inline constexpr int kMaxSlots = 4;

// A slot is one pre-activation per hidden unit in the gate buffer. Gate g's input product is added
// to slot ih_slot[g] and its recurrent product to hh_slot[g]. The two differ only for GRU's n gate,
// whose reset multiplies the recurrent part alone. Slots of the recurrent product are 0..gates-1,
// so that gradients of them lie side by side in the backward product.
struct CellTraits {
  int gates;
  int slots;
  int ih_slot[kMaxGates];
  int hh_slot[kMaxGates];
  bool has_cell_state;
};

// GRU's slots: r, z, the recurrent part of n, the input part of n.
inline constexpr CellTraits kCellTraits[kCellKinds] = {
    {4, 4, {0, 1, 2, 3}, {0, 1, 2, 3}, true},   // LSTM: i, f, g, o
    {3, 4, {0, 1, 3, 0}, {0, 1, 2, 0}, false},  // GRU: r, z, n
    {1, 1, {0, 0, 0, 0}, {0, 0, 0, 0}, false},  // RNN tanh
    {1, 1, {0, 0, 0, 0}, {0, 0, 0, 0}, false},  // RNN relu
};

constexpr const CellTraits& traits(CellKind kind) { return kCellTraits[static_cast<int>(kind)]; }

}  // namespace rnnpack
