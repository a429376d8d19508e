#include "executor/cuda/decoder_program.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/forward.h"

namespace lapidary::cuda {
namespace {

// Writes a phase down where another backend would compute.
class ProgramWriter : public ForwardOps {
 public:
  ProgramWriter(const ModelPlan& plan, const DeviceWeights& weights, const DecoderInputs& inputs)
      : plan_(plan), weights_(weights), inputs_(inputs) {}

  DecoderProgram Take() { return std::move(program_); }

  void AllReduce(PartialSum) override { CHECK(false) << "one rank has nothing to add up"; }

  // Both are the program's inputs.
  void Embed() override {}
  void MakePerLayerInputs() override {}

  void KeepOutputRows() override {
    program_.push_back(KeepOutputRowsPhase{.is_pending = pending_.post_norm != nullptr});
  }

  void ProjectAttention(const LayerPlan& layer) override {
    const auto& weights = weights_.layers[layer.index];
    Add({.block = DecoderBlock::kAttention,
         .residual = Read(weights.input_norm),
         .weight = weights.attention.qkv_proj});
  }

  void Attend(const LayerPlan& layer) override {
    const auto& own = weights_.layers[layer.index].attention;
    const LayerInputs& given = inputs_.layers[layer.index];
    attention_ = LayerAttention{
        .layer = layer.index,
        .kv_layer = layer.kv_layer,
        .q_norm = own.q_norm,
        .k_norm = own.k_norm,
        .owner_k_norm = given.owner_k_norm,
        .rope = given.rope,
        .rotary_pairs = layer.rope.num_rotary_pairs,
        .num_heads = layer.num_heads,
        .num_kv_heads = layer.num_kv_heads,
        .head_dim = layer.head_dim,
        .window = layer.window,
        .group = KvGroupOf(layer.kind),
        .entry = layer.kv_entry,
        .layer_offset = given.kv_offset,
        .k_is_v = layer.k_is_v,
    };
  }

  void AttentionOutput(const LayerPlan& layer) override {
    const auto& weights = weights_.layers[layer.index];
    Add({.block = DecoderBlock::kAttention,
         .input = ProductInput::kAttention,
         .attention = attention_,
         .weight = weights.attention.o_proj});
  }

  void AddAttention(const LayerPlan& layer) override {
    pending_ = {.post_norm = weights_.layers[layer.index].post_attention_norm};
  }

  void DenseMlp(const LayerPlan& layer) override {
    const auto& weights = weights_.layers[layer.index];
    Add({.block = DecoderBlock::kMlp,
         .residual = Read(weights.pre_mlp_norm),
         .weight = weights.mlp.gate_up_proj,
         .epilogue = Epilogue::kGatedGelu,
         .is_beside_experts = layer.has_moe});
    Add({.block = DecoderBlock::kMlp,
         .input = ProductInput::kLastProduct,
         .weight = weights.mlp.down_proj,
         .is_beside_experts = layer.has_moe});
  }

  void Experts(const LayerPlan& layer) override {
    const auto& weights = weights_.layers[layer.index].moe;
    program_.push_back(ExpertsPhase{.layer = layer.index,
                                    .top_k = plan_.moe->top_k,
                                    .router = weights.router_proj,
                                    .router_scale = weights.router_scale,
                                    .per_expert_scale = weights.per_expert_scale,
                                    .pre_norm = weights.pre_norm,
                                    .gate_up = weights.gate_up_proj,
                                    .down = weights.down_proj,
                                    .post_dense_norm = weights.post_dense_norm,
                                    .post_expert_norm = weights.post_expert_norm});
  }

  // The last kernel of the phase above, which sums an expert's rows, norms both branches as well.
  void JoinExperts(const LayerPlan&) override {}

  void MlpOutput(const LayerPlan& layer) override {
    const auto& weights = weights_.layers[layer.index];
    pending_ = {.post_norm = weights.post_mlp_norm,
                .scale = plan_.ple ? 1.0f : weights.layer_scalar};
  }

  void PerLayerGate(const LayerPlan& layer) override {
    const auto& weights = weights_.layers[layer.index];
    const int64_t width = plan_.ple->width;
    Add({.block = DecoderBlock::kPerLayer,
         .residual = Read(nullptr),
         .weight = weights.ple.gate,
         .epilogue = Epilogue::kGeluMul,
         .multiplier = inputs_.ple_inputs + layer.index * width,
         .multiplier_stride = plan_.num_layers * width});
    Add({.block = DecoderBlock::kPerLayer,
         .input = ProductInput::kLastProduct,
         .weight = weights.ple.projection});
    pending_ = {.post_norm = weights.ple.post_norm, .scale = weights.layer_scalar};
  }

  void StoreKv(const LayerPlan& layer) override {
    program_.push_back(StoreEntriesPhase{.layer = layer.index});
  }

  void Head() override {
    Add({.block = DecoderBlock::kHead,
         .residual = Read(weights_.final_norm),
         .weight = weights_.head,
         .epilogue = Epilogue::kSoftcap});
  }

 private:
  void Add(ProductPhase phase) { program_.push_back(std::move(phase)); }

  // Takes what is pending along.
  ResidualRead Read(const float* pre_norm) {
    ResidualRead read = std::exchange(pending_, {});
    read.pre_norm = pre_norm;
    return read;
  }

  const ModelPlan& plan_;
  const DeviceWeights& weights_;
  const DecoderInputs& inputs_;
  DecoderProgram program_;
  LayerAttention attention_;
  ResidualRead pending_;  // what the next reader of the stream adds to it
};

// Each pair of per-layer products becomes one phase that also does the next read of the stream, if
// that comes before `end`.
DecoderProgram FusePerLayerBlocks(DecoderProgram::const_iterator begin,
                                  DecoderProgram::const_iterator end) {
  const auto reads_stream = [](const DecoderPhase& phase) {
    const auto* product = std::get_if<ProductPhase>(&phase);
    return product != nullptr && product->reads_stream();
  };
  DecoderProgram fused;
  bool is_read = false;  // what the next reader would do to the stream
  for (auto at = begin; at != end; ++at) {
    const auto* product = std::get_if<ProductPhase>(&*at);
    if (product == nullptr || !product->reads_stream()) {
      fused.push_back(*at);
      continue;
    }
    ProductPhase phase = *product;
    if (std::exchange(is_read, false)) phase.input = ProductInput::kNormed;
    const auto next = std::find_if(at + 1, end, reads_stream);
    if (phase.block != DecoderBlock::kPerLayer || next == end) {
      fused.push_back(phase);
      continue;
    }
    ++at;
    fused.push_back(PerLayerBlockPhase{.gate = phase,
                                       .projection = std::get<ProductPhase>(*at).weight,
                                       .next = std::get<ProductPhase>(*next).residual});
    is_read = true;
  }
  return fused;
}

// Readers of the stream alternate between its copies. What is written in place stays where it is.
class CopyAssigner {
 public:
  explicit CopyAssigner(bool drops_rows) : drops_rows_(drops_rows) {}

  void operator()(ProductPhase& phase) {
    if (phase.input == ProductInput::kResidual) {
      Advance(phase.residual);
    } else {
      phase.residual.from = phase.residual.to = current_;
    }
  }
  void operator()(ExpertsPhase& phase) const { phase.stream = current_; }
  void operator()(PerLayerBlockPhase& phase) {
    Advance(phase.gate.residual);
    phase.next.from = phase.next.to = current_;
  }
  void operator()(KeepOutputRowsPhase& phase) {
    phase.from = current_;
    // Rows that stay are gathered into the first copy, whatever phases came before.
    if (drops_rows_) current_ = 0;
    phase.to = current_;
  }
  void operator()(const StoreEntriesPhase&) const {}

 private:
  void Advance(ResidualRead& read) {
    read.from = current_;
    current_ = 1 - current_;
    read.to = current_;
  }

  const bool drops_rows_;
  int current_ = 0;
};

}  // namespace

std::vector<LayerInputs> InputsFromOwnKv(const ModelPlan& plan, const DeviceWeights& weights,
                                         const KvLayout& layout) {
  std::vector<LayerInputs> inputs;
  for (const LayerPlan& layer : plan.layers) {
    inputs.push_back({.owner_k_norm = weights.layers[layer.kv_layer].attention.k_norm,
                      .kv_offset = layout.layer_offset[layer.kv_layer]});
  }
  return inputs;
}

DecoderProgram MakeDecoderProgram(const ModelPlan& plan, const DeviceWeights& weights,
                                  const DecoderInputs& inputs,
                                  const DecoderProgramOptions& options) {
  ProgramWriter writer(plan, weights, inputs);
  RunDecoder(plan, options.skip_unneeded_rows, /*num_ranks=*/1, writer);
  DecoderProgram program = writer.Take();

  // Spans of the same rows.
  const auto keep = std::find_if(program.cbegin(), program.cend(), [](const DecoderPhase& phase) {
    return std::holds_alternative<KeepOutputRowsPhase>(phase);
  });
  CHECK(keep != program.cend());
  const auto end_of_all = options.drops_rows ? keep : program.cend();
  const auto part = [&](auto begin, auto end, bool fuses) {
    return fuses ? FusePerLayerBlocks(begin, end) : DecoderProgram(begin, end);
  };
  DecoderProgram fused = part(program.cbegin(), end_of_all, options.fuses_per_layer);
  const DecoderProgram rest = part(end_of_all, program.cend(), options.fuses_per_layer_of_outputs);
  fused.insert(fused.end(), rest.begin(), rest.end());

  CopyAssigner assign(options.drops_rows);
  for (DecoderPhase& phase : fused) std::visit(assign, phase);
  const auto last_store = std::find_if(fused.rbegin(), fused.rend(), [](const DecoderPhase& phase) {
    return std::holds_alternative<StoreEntriesPhase>(phase);
  });
  CHECK(last_store != fused.rend());
  std::get<StoreEntriesPhase>(*last_store).is_last = true;
  return fused;
}

DecoderProgram MakeAssistantProgram(const ModelPlan& plan, const DeviceWeights& weights,
                                    const DecoderInputs& inputs) {
  ProgramWriter writer(plan, weights, inputs);
  for (const LayerPlan& layer : plan.layers) {
    writer.ProjectAttention(layer);
    writer.Attend(layer);
    writer.AttentionOutput(layer);
    writer.AddAttention(layer);
    writer.DenseMlp(layer);
    writer.MlpOutput(layer);
  }
  writer.Head();
  DecoderProgram program = writer.Take();
  CopyAssigner assign(/*drops_rows=*/false);
  for (DecoderPhase& phase : program) std::visit(assign, phase);
  return program;
}

}  // namespace lapidary::cuda
