#include "ops/cuda/resident/resident_program.h"

#include <algorithm>
#include <cstring>

#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/resident/resident_limits.h"
#include "ops/cuda/resident/resident_tuning.h"

namespace lapidary::cuda {
namespace {

// Device memory behind the scratch pointer, in bytes. An exchange of each kind has packets of its
// own.
struct ScratchLayout {
  int64_t raw = 0;  // q, k, v
  int64_t attended = 0;
  int64_t attention_out = 0;
  int64_t activated = 0;
  int64_t mlp_out = 0;
  int64_t ple_gate = 0;
  int64_t ple_out = 0;
  int64_t partial_sums = 0;
  int64_t partial_weights = 0;
  std::vector<int64_t> kept;  // by layer, for owners of KV
  int64_t number = 0;
  int64_t total = 0;

  ScratchLayout(const DeviceInfo& device, const ResidentModel& model) {
    const ResidentWidths widths(model);
    raw = Place(PacketBytes(widths.max_qkv_rows));
    attended = Place(PacketBytes(widths.max_attended));
    attention_out = Place(PacketBytes(model.hidden));
    activated = Place(PacketBytes(widths.max_mlp_width));
    mlp_out = Place(PacketBytes(model.hidden));
    ple_gate = Place(PacketBytes(model.ple_width));
    ple_out = Place(PacketBytes(model.hidden));
    const int64_t splits = ResidentBlocks(device, model);  // one each
    partial_sums = Place(splits * static_cast<int64_t>(kSplitSumBytes));
    partial_weights = Place(splits * kSplitHeads * static_cast<int64_t>(sizeof(uint4)));
    for (const ResidentLayer& layer : model.layers) {
      kept.push_back(Place(PacketBytes(layer.num_kv_heads * layer.entry.entry_len)));
    }
    number = Place(sizeof(uint32_t));
  }

 private:
  static int64_t PacketBytes(int values) {
    return int64_t{values} / 2 * static_cast<int64_t>(sizeof(uint64_t));
  }
  int64_t Place(int64_t num_bytes) {
    const int64_t at = total;
    total += (num_bytes + 127) / 128 * 128;
    return at;
  }
};

ResidentKvGroup GroupOf(const ResidentLayer& layer) {
  return {.num_heads = layer.num_heads,
          .num_kv_heads = layer.num_kv_heads,
          .head_dim = layer.head_dim,
          .window = layer.window};
}

class ProgramMaker {
 public:
  ProgramMaker(const DeviceInfo& device, const ResidentModel& model, void* scratch)
      : model_(model),
        layout_(device, model),
        scratch_(static_cast<std::byte*>(scratch)),
        num_blocks_(ResidentBlocks(device, model)) {}

  std::vector<std::byte> Make() {
    for (size_t idx = 0; idx < model_.layers.size(); ++idx) AddLayer(static_cast<int>(idx));
    ResidentPhase head = Residual(model_.vocab_size, model_.final_norm);
    head.finish = ResidentFinish::kLogits;
    Add(head, model_.head);

    ResidentProgram program;
    program.partials = {At<uint4>(layout_.partial_sums), At<uint4>(layout_.partial_weights)};
    program.number = At<uint32_t>(layout_.number);
    for (const ResidentLayer& layer : model_.layers) {
      program.groups[layer.group] = GroupOf(layer);
    }
    program.hidden = model_.hidden;
    program.num_phases = static_cast<int>(phases_.size());
    std::vector<std::byte> bytes(program.num_bytes());
    const auto put = [&](int64_t offset, const void* from, size_t num_bytes) {
      std::memcpy(bytes.data() + offset, from, num_bytes);
    };
    put(0, &program, sizeof(program));
    put(sizeof(program), phases_.data(), phases_.size() * sizeof(ResidentPhase));
    for (size_t idx = 0; idx < phases_.size(); ++idx) {
      const ResidentMatrix& matrix = phases_[idx].matrix;
      put(program.matrices_offset() + idx * sizeof(matrix), &matrix, sizeof(matrix));
      const ResidentAttention& attention = phases_[idx].attention;
      const ResidentKv kv{.layer_offset = attention.layer_offset,
                          .entry_len = attention.head_dim == 0 ? 0 : attention.entry_len,
                          .group = attention.group};
      put(program.kv_offset() + idx * sizeof(kv), &kv, sizeof(kv));
      for (const int last : {0, 1}) {
        const int box_rows = last ? matrix.last_size : matrix.tile_size;
        const CUtensorMap map =
            matrix.one_copy
                ? MakeChunkedMap(weights_[idx], matrix.num_rows, matrix.in_dim, box_rows,
                                 matrix.slot_chunks)
                : MakeSwizzledMap(weights_[idx], matrix.num_rows, matrix.in_dim, box_rows);
        put(program.maps_offset() + (2 * idx + last) * sizeof(map), &map, sizeof(map));
      }
    }
    return bytes;
  }

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(scratch_ + offset);
  }
  uint64_t* Packets(int64_t offset) const { return At<uint64_t>(offset); }

  // Its matrix has only its dimensions so far.
  void Add(ResidentPhase phase, const MatrixRef& weight) {
    phase.matrix = PlanResidentMatrix(phase.matrix.num_rows, phase.matrix.in_dim,
                                      phase.finish == ResidentFinish::kGatedGelu, num_blocks_,
                                      kResidentTunings[ResidentTuningOf(model_.hidden)].slot_bytes);
    phases_.push_back(phase);
    weights_.push_back(Bf16Values(weight, phase.matrix.num_rows, phase.matrix.in_dim));
  }

  // A phase that reads the residual stream, with what the last block adds to it.
  ResidentPhase Residual(int num_rows, const float* pre_norm) const {
    ResidentPhase phase;
    phase.matrix = {.num_rows = num_rows, .in_dim = model_.hidden};
    phase.reads_residual = true;
    phase.input = added_;
    phase.post_norm = added_norm_;
    phase.scale = added_scale_;
    phase.pre_norm = pre_norm;
    return phase;
  }

  // A phase that makes what is added to the residual stream next.
  ResidentPhase Output(int in_dim, const uint64_t* input, int64_t output, const float* post_norm,
                       float scale) {
    ResidentPhase phase;
    phase.matrix = {.num_rows = model_.hidden, .in_dim = in_dim};
    phase.input = input;
    phase.output = Packets(output);
    added_ = phase.output;
    added_norm_ = post_norm;
    added_scale_ = scale;
    return phase;
  }

  void AddLayer(int layer_idx) {
    const ResidentLayer& layer = model_.layers[layer_idx];
    const bool has_ple = model_.ple_width > 0;
    ResidentPhase qkv = Residual(layer.qkv.rows, layer.input_norm);
    qkv.output = Packets(layout_.raw);
    Add(qkv, layer.qkv);

    ResidentPhase output = Output(layer.num_heads * layer.head_dim, Packets(layout_.attended),
                                  layout_.attention_out, layer.post_attention_norm, 1.0f);
    const int phase = static_cast<int>(phases_.size());
    if (layer.kv_layer == layer_idx) phase_of_owner_[layer_idx] = phase;
    output.attention = {.raw = qkv.output,
                        .q_norm = layer.q_norm,
                        .k_norm = layer.k_norm,
                        .owner_k_norm = layer.owner_k_norm,
                        .rope = layer.rope,
                        .kept = Packets(layout_.kept[layer.kv_layer]),
                        .layer_offset = layer.layer_offset,
                        .rotary_pairs = layer.rotary_pairs,
                        .num_heads = layer.num_heads,
                        .num_kv_heads = layer.num_kv_heads,
                        .head_dim = layer.head_dim,
                        .window = layer.window,
                        .group = layer.group,
                        .entry_len = layer.entry.entry_len,
                        .phases_since_owner = phase - phase_of_owner_[layer.kv_layer],
                        .keys_are_apart = layer.entry.key_offset != 0,
                        .owns_kv = layer.kv_layer == layer_idx,
                        .k_is_v = layer.k_is_v};
    Add(output, layer.output);

    ResidentPhase gate_up = Residual(2 * layer.mlp_width, layer.pre_mlp_norm);
    gate_up.finish = ResidentFinish::kGatedGelu;
    gate_up.output = Packets(layout_.activated);
    Add(gate_up, layer.gate_up);
    Add(Output(layer.mlp_width, gate_up.output, layout_.mlp_out, layer.post_mlp_norm,
               has_ple ? 1.0f : layer.scale),
        layer.down);
    if (!has_ple) return;

    ResidentPhase gate = Residual(model_.ple_width, nullptr);
    gate.finish = ResidentFinish::kGeluMul;
    gate.multiplier = model_.ple_inputs + int64_t{layer_idx} * model_.ple_width;
    gate.output = Packets(layout_.ple_gate);
    Add(gate, layer.ple_gate);
    Add(Output(model_.ple_width, gate.output, layout_.ple_out, layer.ple_post_norm, layer.scale),
        layer.ple_projection);
  }

  const ResidentModel& model_;
  const ScratchLayout layout_;
  std::byte* const scratch_;
  const int num_blocks_;
  std::vector<ResidentPhase> phases_;
  std::vector<const bf16*> weights_;  // of the phases
  std::vector<int> phase_of_owner_ = std::vector<int>(model_.layers.size());
  const uint64_t* added_ = nullptr;
  const float* added_norm_ = nullptr;
  float added_scale_ = 1.0f;
};

}  // namespace

ResidentWidths::ResidentWidths(const ResidentModel& model) {
  min_mlp_width = model.layers.front().mlp_width;
  for (const ResidentLayer& layer : model.layers) {
    max_qkv_rows = std::max(max_qkv_rows, layer.qkv.rows);
    max_attended = std::max(max_attended, layer.num_heads * layer.head_dim);
    max_mlp_width = std::max(max_mlp_width, layer.mlp_width);
    min_mlp_width = std::min(min_mlp_width, layer.mlp_width);
    max_kv_heads = std::max(max_kv_heads, layer.num_kv_heads);
    query_bytes = std::max(
        query_bytes, ResidentQueryBytes(layer.num_heads / layer.num_kv_heads, layer.entry.key_len));
  }
  widest_input = std::max({model.hidden, max_attended, max_mlp_width, model.ple_width});
}

int ResidentBlocks(const DeviceInfo& device, const ResidentModel& model) {
  return std::min({device.num_sms, model.hidden / 2, ResidentWidths(model).min_mlp_width / 2});
}

bool GroupsAreUniform(const ResidentModel& model) {
  for (const ResidentLayer& layer : model.layers) {
    const auto same_group = [&](const ResidentLayer& other) { return other.group == layer.group; };
    const auto first = std::find_if(model.layers.begin(), model.layers.end(), same_group);
    if (GroupOf(*first) != GroupOf(layer)) return false;
  }
  return true;
}

bool WeightsAreBf16(const ResidentModel& model) {
  if (!IsBf16(model.head)) return false;
  return std::all_of(model.layers.begin(), model.layers.end(), [](const ResidentLayer& layer) {
    return IsBf16(layer.qkv) && IsBf16(layer.output) && IsBf16(layer.gate_up) &&
           IsBf16(layer.down) && IsBf16(layer.ple_gate) && IsBf16(layer.ple_projection);
  });
}

int64_t ResidentScratchBytes(const DeviceInfo& device, const ResidentModel& model) {
  return ScratchLayout(device, model).total;
}

std::vector<std::byte> MakeResidentProgram(const DeviceInfo& device, const ResidentModel& model,
                                           void* scratch) {
  return ProgramMaker(device, model, scratch).Make();
}

}  // namespace lapidary::cuda
