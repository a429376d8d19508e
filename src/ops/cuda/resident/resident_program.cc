#include "ops/cuda/resident/resident_program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/resident/resident_entry_runs.h"
#include "ops/cuda/resident/resident_limits.h"
#include "ops/cuda/resident/resident_tuning.h"
#include "tensor/weight_tiles.h"

namespace lapidary::cuda {
namespace {

// The dense products, in order.
std::vector<const ProductPhase*> ProductsOf(const DecoderProgram& program) {
  std::vector<const ProductPhase*> products;
  for (const DecoderPhase& phase : program) {
    if (const auto* product = std::get_if<ProductPhase>(&phase)) products.push_back(product);
  }
  return products;
}

std::vector<const ExpertsPhase*> ExpertsOf(const DecoderProgram& program) {
  std::vector<const ExpertsPhase*> experts;
  for (const DecoderPhase& phase : program) {
    if (const auto* layer = std::get_if<ExpertsPhase>(&phase)) experts.push_back(layer);
  }
  return experts;
}

std::vector<LayerAttention> AttentionsOf(const DecoderProgram& program) {
  std::vector<LayerAttention> attentions;
  for (const ProductPhase* product : ProductsOf(program)) {
    if (product->attention) attentions.push_back(*product->attention);
  }
  return attentions;
}

ResidentKvGroup GroupOf(const LayerAttention& attention) {
  return {.num_heads = attention.num_heads,
          .num_kv_heads = attention.num_kv_heads,
          .entry_len = attention.entry.entry_len,
          .window = attention.window};
}

ResidentFinish FinishOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kStore:
      return ResidentFinish::kSend;
    case Epilogue::kGatedGelu:
      return ResidentFinish::kGatedGelu;
    case Epilogue::kGeluMul:
      return ResidentFinish::kGeluMul;
    case Epilogue::kSoftcap:
      return ResidentFinish::kLogits;
  }
  CHECK(false) << "an epilogue that no kernel has";
  return {};
}

class ProgramMaker {
 public:
  ProgramMaker(const DeviceInfo& device, const DecoderProgram& program, void* scratch)
      : source_(program),
        widths_(program),
        layout_(device.num_sms, ExchangesOf(program)),
        scratch_(static_cast<std::byte*>(scratch)),
        num_blocks_(ResidentBlocks(device, widths_)),
        slot_bytes_(kResidentTunings[ResidentTuningOf(widths_)].slot_bytes),
        phase_of_owner_(layout_.kept.size()) {}

  std::vector<std::byte> Make() {
    for (const DecoderPhase& phase : source_) {
      if (const auto* product = std::get_if<ProductPhase>(&phase)) Add(*product);
      if (const auto* experts = std::get_if<ExpertsPhase>(&phase)) AddExperts(*experts);
    }

    ResidentProgram program;
    program.partials = {At<uint4>(layout_.partial_sums), At<uint4>(layout_.partial_weights)};
    program.number = At<uint32_t>(layout_.number);
    for (const LayerAttention& attention : AttentionsOf(source_)) {
      program.groups[attention.group] = GroupOf(attention);
    }
    program.hidden = widths_.hidden;
    program.num_phases = static_cast<int>(phases_.size());
    program.num_experts = widths_.num_experts;
    program.num_ranks = widths_.num_ranks;
    const int64_t count = program.num_phases;
    std::vector<std::byte> bytes(ResidentProgramLayout::Total(count));
    const auto put = [&](int64_t offset, const void* from, size_t num_bytes) {
      std::memcpy(bytes.data() + offset, from, num_bytes);
    };
    put(0, &program, sizeof(program));
    put(sizeof(program), phases_.data(), phases_.size() * sizeof(ResidentPhase));
    for (size_t idx = 0; idx < phases_.size(); ++idx) {
      const ResidentMatrix& matrix = phases_[idx].matrix;
      put(ResidentProgramLayout::Matrices(count) + idx * sizeof(matrix), &matrix, sizeof(matrix));
      const ResidentAttention& attention = phases_[idx].attention;
      const ResidentKv kv{.layer_offset = attention.layer_offset,
                          .entry_len = attention.head_dim == 0 ? 0 : attention.entry_len,
                          .group = static_cast<int16_t>(attention.group),
                          .chooses_experts = matrix.by_rank};
      put(ResidentProgramLayout::Kv(count) + idx * sizeof(kv), &kv, sizeof(kv));
      put(ResidentProgramLayout::Experts(count) + idx * sizeof(ResidentExperts), &experts_[idx],
          sizeof(ResidentExperts));
      for (const int last : {0, 1}) {
        const int box_rows = last ? matrix.last_size : matrix.tile_size;
        const MatrixRef& weight = weights_[idx];
        // Of tiled matrices nobody uses it.
        const CUtensorMap map =
            matrix.is_tiled() ? MakeSwizzledMap(weight.As<bf16>(), kTileRows, kTileCols, kTileRows)
            : matrix.one_copy
                ? MakeChunkedMap(Bf16Values(weight), weight.rows, weight.cols, box_rows,
                                 matrix.slot_chunks)
                : MakeSwizzledMap(Bf16Values(weight), weight.rows, weight.cols, box_rows);
        put(ResidentProgramLayout::Maps(count) + (2 * idx + last) * sizeof(map), &map, sizeof(map));
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

  void Add(const ProductPhase& product) {
    ResidentPhase phase;
    phase.finish = FinishOf(product.epilogue);
    phase.matrix = PlanResidentMatrix(product.weight.rows, product.weight.cols,
                                      product.epilogue == Epilogue::kGatedGelu, num_blocks_,
                                      slot_bytes_, TileTypeOf(product.weight));
    phase.multiplier = product.multiplier;
    ResidentExperts experts;
    if (product.reads_stream()) {
      experts = std::exchange(joined_, {});
      phase.reads_residual = true;
      phase.input = product.residual.post_norm == nullptr ? nullptr : added_;
      phase.post_norm = product.residual.post_norm;
      phase.scale = product.residual.scale;
      phase.pre_norm = product.residual.pre_norm;
    } else {
      phase.input = last_output_;
    }
    if (product.attention) {
      phase.attention = Attention(*product.attention, last_output_);
      phase.input = Packets(layout_.attended);
    }
    if (product.block != DecoderBlock::kHead) {
      const ResidentScratchLayout::Block& block =
          layout_.blocks[static_cast<size_t>(product.block)];
      phase.output = Packets(product.adds_to_stream() ? block.second : block.first);
      (product.adds_to_stream() ? added_ : last_output_) = phase.output;
    }
    Add(phase, experts, product.weight);
  }

  // Behind both products of the dense branch.
  void AddExperts(const ExpertsPhase& layer) {
    uint64_t* const logits = Packets(layout_.expert_logits);
    ResidentExperts& route = experts_[experts_.size() - 2];
    route.logits = logits;
    route.router = Bf16Values(layer.router);
    route.router_scale = layer.router_scale;
    route.pre_norm = layer.pre_norm;
    phases_[phases_.size() - 2].expert_format = TileTypeOf(layer.gate_up);

    const int width = layer.down.cols;
    ResidentPhase gate_up;
    gate_up.finish = ResidentFinish::kGatedGelu;
    gate_up.matrix = PlanExpertGateUp(width, widths_.hidden, layer.top_k, num_blocks_, slot_bytes_,
                                      TileTypeOf(layer.gate_up));
    gate_up.output = Packets(layout_.experts.first);
    Add(gate_up, {.logits = logits, .per_expert_scale = layer.per_expert_scale}, layer.gate_up);

    ResidentPhase down;
    down.matrix = PlanExpertDown(widths_.hidden, width, layer.top_k, num_blocks_, slot_bytes_,
                                 TileTypeOf(layer.down));
    down.input = gate_up.output;
    down.output = Packets(layout_.experts.second);
    Add(down, {}, layer.down);
    joined_ = {.dense = std::exchange(added_, down.output),
               .post_dense_norm = layer.post_dense_norm,
               .post_expert_norm = layer.post_expert_norm};
  }

  void Add(const ResidentPhase& phase, const ResidentExperts& experts, const MatrixRef& weight) {
    phases_.push_back(phase);
    if (phase.matrix.is_tiled()) phases_.back().matrix.tiles = weight.As<std::byte>();
    experts_.push_back(experts);
    weights_.push_back(weight);
  }

  // Of the next phase. `raw`: packets of q, k, v.
  ResidentAttention Attention(const LayerAttention& layer, const uint64_t* raw) {
    const int phase = static_cast<int>(phases_.size());
    // An assistant's layers read another decoder's KV.
    const bool reads_own = layer.kv_layer >= 0;
    if (layer.owns_kv()) phase_of_owner_[layer.layer] = phase;
    return {.raw = raw,
            .q_norm = layer.q_norm,
            .k_norm = layer.k_norm,
            .owner_k_norm = layer.owner_k_norm,
            .rope = layer.rope,
            .kept = reads_own ? Packets(layout_.kept[layer.kv_layer]) : nullptr,
            .layer_offset = layer.layer_offset,
            .rotary_pairs = layer.rotary_pairs,
            .num_heads = layer.num_heads,
            .num_kv_heads = layer.num_kv_heads,
            .head_dim = layer.head_dim,
            .window = layer.window,
            .group = layer.group,
            .entry_len = layer.entry.entry_len,
            .phases_since_owner = reads_own ? phase - phase_of_owner_[layer.kv_layer] : 0,
            .keys_are_apart = !layer.entry.k_is_v(),
            .owns_kv = layer.owns_kv(),
            .k_is_v = layer.k_is_v};
  }

  const DecoderProgram& source_;
  const ResidentWidths widths_;
  const ResidentScratchLayout layout_;
  std::byte* const scratch_;
  const int num_blocks_;
  const int slot_bytes_;
  std::vector<ResidentPhase> phases_;
  std::vector<ResidentExperts> experts_;   // of the phases
  std::vector<MatrixRef> weights_;         // of the phases
  std::vector<int> phase_of_owner_;        // by layer
  const uint64_t* last_output_ = nullptr;  // of the first product of a block
  const uint64_t* added_ = nullptr;        // of the second
  ResidentExperts joined_;                 // for the next reader of the stream
};

}  // namespace

ResidentWidths::ResidentWidths(const DecoderProgram& program) {
  min_mlp_width = std::numeric_limits<int>::max();
  for (const ProductPhase* product : ProductsOf(program)) {
    const MatrixRef& weight = product->weight;
    tiled = tiled || IsTiled(weight);
    widest_input = std::max(widest_input, weight.cols);
    switch (product->block) {
      case DecoderBlock::kAttention:
        if (product->reads_stream()) max_qkv_rows = std::max(max_qkv_rows, weight.rows);
        break;
      case DecoderBlock::kMlp:
        if (product->reads_stream()) break;
        max_mlp_width = std::max(max_mlp_width, weight.cols);
        min_mlp_width = std::min(min_mlp_width, weight.cols);
        break;
      case DecoderBlock::kPerLayer:
        if (product->reads_stream()) ple_width = weight.rows;
        break;
      case DecoderBlock::kHead:
        hidden = weight.cols;
        vocab_size = weight.rows;
        break;
    }
  }
  for (const ExpertsPhase* experts : ExpertsOf(program)) {
    tiled = tiled || IsTiled(experts->gate_up) || IsTiled(experts->down);
    num_experts = experts->router.rows;
    num_ranks = experts->top_k;
    expert_width = experts->down.cols;
    widest_input = std::max(widest_input, num_ranks * expert_width);
  }
  for (const LayerAttention& attention : AttentionsOf(program)) {
    max_attended = std::max(max_attended, attention.num_heads * attention.head_dim);
    max_kv_heads = std::max(max_kv_heads, attention.num_kv_heads);
    query_bytes = std::max(
        query_bytes,
        ResidentQueryBytes(attention.num_heads / attention.num_kv_heads, attention.entry.key_len));
  }
}

int ResidentBlocks(const DeviceInfo& device, const ResidentWidths& widths) {
  return ResidentBlocks(device.num_sms, widths.hidden, widths.min_mlp_width,
                        widths.tiled ? kTileRows : 2);
}

ResidentExchanges ExchangesOf(const DecoderProgram& program) {
  const ResidentWidths widths(program);
  ResidentExchanges exchanges{
      .hidden = widths.hidden,
      .max_qkv_rows = widths.max_qkv_rows,
      .max_attended = widths.max_attended,
      .max_mlp_width = widths.max_mlp_width,
      .min_mlp_width = widths.min_mlp_width,
      .ple_width = widths.ple_width,
      .num_experts = widths.num_experts,
      .expert_values = widths.num_ranks * widths.expert_width,
      .entry_values = {},
      .num_phases = static_cast<int>(ProductsOf(program).size() + 2 * ExpertsOf(program).size()),
      .granule = widths.tiled ? kTileRows : 2};
  for (const LayerAttention& attention : AttentionsOf(program)) {
    exchanges.entry_values.push_back(attention.num_kv_heads * attention.entry.entry_len);
  }
  return exchanges;
}

bool PhasesAreResident(const DecoderProgram& program) {
  return std::all_of(program.begin(), program.end(), [](const DecoderPhase& phase) {
    return std::holds_alternative<ProductPhase>(phase) ||
           std::holds_alternative<ExpertsPhase>(phase) ||
           std::holds_alternative<KeepOutputRowsPhase>(phase) ||
           std::holds_alternative<StoreEntriesPhase>(phase);
  });
}

bool GroupsAreUniform(const DecoderProgram& program) {
  const std::vector<LayerAttention> layers = AttentionsOf(program);
  return std::all_of(layers.begin(), layers.end(), [&](const LayerAttention& layer) {
    const auto same_group = [&](const LayerAttention& other) { return other.group == layer.group; };
    if (layer.window > 0 && EntryRuns::MayBeLong(layer.entry.entry_len)) return false;
    return GroupOf(*std::find_if(layers.begin(), layers.end(), same_group)) == GroupOf(layer);
  });
}

bool WeightsAreResident(const DecoderProgram& program) {
  const std::vector<const ProductPhase*> products = ProductsOf(program);
  const std::vector<const ExpertsPhase*> layers = ExpertsOf(program);
  // Of gated matrices, each half is stripes.
  const auto is_known = [](const MatrixRef& weight, bool gated) {
    const std::optional<TileType> type = FindTileType(weight.format);
    return type && (!IsTiled(*type) || weight.rows % (gated ? 2 * kTileRows : kTileRows) == 0);
  };
  return std::all_of(products.begin(), products.end(),
                     [&](const ProductPhase* product) {
                       return is_known(product->weight, product->epilogue == Epilogue::kGatedGelu);
                     }) &&
         std::all_of(layers.begin(), layers.end(), [&](const ExpertsPhase* layer) {
           const bool has_stripes = layer->down.cols % kTileRows == 0;
           return IsBf16(layer->router) && is_known(layer->gate_up, false) &&
                  is_known(layer->down, false) && (has_stripes || IsBf16(layer->gate_up));
         });
}

bool ExpertsAreUniform(const DecoderProgram& program) {
  const ResidentWidths widths(program);
  const std::vector<const ExpertsPhase*> layers = ExpertsOf(program);
  return std::all_of(layers.begin(), layers.end(), [&](const ExpertsPhase* layer) {
    return layer->router.rows == widths.num_experts && layer->top_k == widths.num_ranks &&
           layer->down.cols == widths.expert_width;
  });
}

int64_t ResidentScratchBytes(const DeviceInfo& device, const DecoderProgram& program) {
  return ResidentScratchLayout(device.num_sms, ExchangesOf(program)).total;
}

std::vector<std::byte> MakeResidentProgram(const DeviceInfo& device, const DecoderProgram& program,
                                           void* scratch) {
  return ProgramMaker(device, program, scratch).Make();
}

}  // namespace lapidary::cuda
