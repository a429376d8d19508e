#include "model/shard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace lapidary {
namespace {

// The part of a rank, in whole units; the last unit may be shorter.
IndexRange PartOf(int total, int unit, int rank, int size) {
  const int64_t num_units = (total + unit - 1) / unit;
  const auto begin_of = [&](int64_t part) {
    return static_cast<int>(std::min<int64_t>(total, part * num_units / size * unit));
  };
  return {begin_of(rank), begin_of(rank + 1)};
}

// Heads [q | KV] of a layer that a rank has. A KV head that several ranks' heads read is on each.
IndexRange HeadsOf(const LayerPlan& layer, int rank, int size) {
  const int count = layer.num_heads / size;
  return {rank * count, (rank + 1) * count};
}
IndexRange KvHeadsOf(const LayerPlan& layer, int rank, int size) {
  const int first = rank * layer.num_kv_heads / size;
  return {first, first + std::max(layer.num_kv_heads / size, 1)};
}

// The one unit in which a width is shared out: it is rows of some tensors and columns of others,
// and the same part in all layers.
struct Units {
  int mlp = 1;
  int experts = 1;
  int vocab = 1;
};

Units UnitsOf(const CutUnits& units) {
  Units all;
  for (const auto& [name, unit] : units) {
    const auto merge = [](int& into, int with) { into = std::lcm(into, with); };
    if (name.ends_with("mlp.gate_proj.weight") || name.ends_with("mlp.up_proj.weight")) {
      merge(all.mlp, unit.rows);
    } else if (name.ends_with("mlp.down_proj.weight")) {
      merge(all.mlp, unit.cols);
    } else if (name.ends_with("experts.gate_up_proj")) {
      merge(all.experts, unit.rows);
    } else if (name.ends_with("experts.down_proj")) {
      merge(all.experts, unit.cols);
    } else if (name == "embed_tokens.weight" || name == kHeadName) {
      merge(all.vocab, unit.rows);
    }
  }
  return all;
}

IndexRange All(int64_t count) { return {0, static_cast<int>(count)}; }
IndexRange Times(IndexRange heads, int head_dim) {
  return {heads.begin * head_dim, heads.end * head_dim};
}

TensorCut Whole(const TensorSpec& spec) {
  const int64_t cols = spec.shape.back();
  return {.whole = spec, .rows = {All(spec.num_elements() / cols)}, .cols = All(cols)};
}

// Of q, k, v and o. False: the tensor is another, or whole.
bool CutAttention(const LayerPlan& layer, int rank, int size, TensorCut& cut) {
  const std::string& name = cut.whole.name;
  const IndexRange heads = Times(HeadsOf(layer, rank, size), layer.head_dim);
  if (name.ends_with("self_attn.q_proj.weight")) {
    cut.rows = {heads};
  } else if (name.ends_with("self_attn.k_proj.weight") ||
             name.ends_with("self_attn.v_proj.weight")) {
    cut.rows = {Times(KvHeadsOf(layer, rank, size), layer.head_dim)};
  } else if (name.ends_with("self_attn.o_proj.weight")) {
    cut.cols = heads;
  } else {
    return false;
  }
  return true;
}

// Widths and the vocabulary.
void CutWidths(const ModelPlan& plan, const Units& units, int rank, int size, TensorCut& cut) {
  const std::string& name = cut.whole.name;
  const auto part = [&](int total, int unit) { return PartOf(total, unit, rank, size); };
  if (name == "embed_tokens.weight" || name == kHeadName) {
    cut.rows = {part(plan.vocab_size, units.vocab)};
  } else if (name.ends_with("mlp.gate_proj.weight") || name.ends_with("mlp.up_proj.weight")) {
    cut.rows = {part(plan.layers[cut.whole.layer].mlp_width, units.mlp)};
  } else if (name.ends_with("mlp.down_proj.weight")) {
    cut.cols = part(plan.layers[cut.whole.layer].mlp_width, units.mlp);
  } else if (name.ends_with("experts.down_proj")) {
    cut.cols = part(plan.moe->expert_width, units.experts);
  } else if (name.ends_with("experts.gate_up_proj")) {
    const int width = plan.moe->expert_width;
    const IndexRange own = part(width, units.experts);
    if (own.count() == width) return;
    cut.rows.clear();
    // Gate rows of an expert, then its up rows.
    for (int first = 0; first < 2 * plan.moe->num_experts * width; first += width) {
      cut.rows.push_back({first + own.begin, first + own.end});
    }
  }
}

std::vector<TensorCut> Cut(const ModelPlan& plan, const CutUnits& units, int rank, int size) {
  const Units shared = UnitsOf(units);
  std::vector<TensorCut> cuts;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    TensorCut& cut = cuts.emplace_back(Whole(spec));
    if (spec.layer >= 0 && CutAttention(plan.layers[spec.layer], rank, size, cut)) continue;
    CutWidths(plan, shared, rank, size, cut);
  }
  return cuts;
}

std::vector<TensorCut> Cut(const AssistantPlan& plan, int rank, int size) {
  std::vector<TensorCut> cuts;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    TensorCut& cut = cuts.emplace_back(Whole(spec));
    if (spec.layer >= 0) CutAttention(plan.decoder.layers[spec.layer], rank, size, cut);
  }
  return cuts;
}

// Whether every layer's heads can be shared out.
Status CheckHeads(const ModelPlan& plan, int size) {
  for (const LayerPlan& layer : plan.layers) {
    if (layer.num_heads % size != 0) {
      return MakeError("its {} attention heads cannot be shared out evenly", layer.num_heads);
    }
    if (layer.num_kv_heads % size != 0 && size % layer.num_kv_heads != 0) {
      return MakeError("its {} KV heads cannot be shared out evenly", layer.num_kv_heads);
    }
  }
  return {};
}

// Whether a cut lies where the stored format can be cut, and leaves something.
Status CheckCut(const TensorCut& cut, const CutUnits& units) {
  const auto it = units.find(cut.whole.name);
  const CutUnit unit = it == units.end() ? CutUnit{} : it->second;
  const int64_t num_cols = cut.whole.shape.back();
  const int64_t num_rows = cut.whole.num_elements() / num_cols;
  const auto check = [&](IndexRange range, int64_t total, int step, const char* what) -> Status {
    if (range.count() <= 0) return MakeError("{} has too few {}", cut.whole.name, what);
    if (range.begin % step == 0 && (range.end % step == 0 || range.end == total)) return {};
    return MakeError("{} is stored in blocks of {} {}, which cannot be cut at {}", cut.whole.name,
                     step, what, range.begin % step == 0 ? range.end : range.begin);
  };
  // Of experts, each half has its own blocks, and is cut like the first.
  const int64_t period = cut.rows.size() > 1 ? cut.whole.shape[1] / 2 : num_rows;
  RETURN_IF_ERROR(check(cut.rows.front(), period, unit.rows, "rows"));
  return check(cut.cols, num_cols, unit.cols, "columns");
}

Status CheckSize(const ModelPlan& plan, const CutUnits& units, int size) {
  RETURN_IF_ERROR(CheckHeads(plan, size));
  for (int rank = 0; rank < size; ++rank) {
    for (const TensorCut& cut : Cut(plan, units, rank, size)) {
      RETURN_IF_ERROR(CheckCut(cut, units));
    }
  }
  return {};
}

Status CheckSize(const AssistantPlan& plan, const CutUnits& units, int size) {
  RETURN_IF_ERROR(CheckHeads(plan.decoder, size));
  for (int rank = 0; rank < size; ++rank) {
    for (const TensorCut& cut : Cut(plan, rank, size)) RETURN_IF_ERROR(CheckCut(cut, units));
  }
  return {};
}

template <typename Plan>
std::vector<int> SizesOf(const Plan& plan, const CutUnits& units) {
  std::vector<int> sizes;
  for (int size = 1; size <= kMaxRanks; ++size) {
    if (CheckSize(plan, units, size).ok()) sizes.push_back(size);
  }
  return sizes;
}

template <typename Plan>
Status CheckRanks(const Plan& plan, const CutUnits& units, int size, const char* what) {
  Status status;
  if (size < 1 || size > kMaxRanks) {
    status = MakeError("there may be 1 to {} ranks", kMaxRanks);
  } else {
    status = CheckSize(plan, units, size);
  }
  if (status.ok()) return {};
  return MakeError("{} cannot be split over {} ranks: {}; {} work", what, size,
                   status.error().message, fmt::join(SizesOf(plan, units), ", "));
}

// What the layers of a rank have.
void CutLayers(int rank, int size, const Units& units, bool cuts_mlp, ModelPlan& plan) {
  for (LayerPlan& layer : plan.layers) {
    const IndexRange kv_heads = KvHeadsOf(layer, rank, size);
    layer.num_heads /= size;
    layer.num_kv_heads = kv_heads.count();
    if (cuts_mlp) layer.mlp_width = PartOf(layer.mlp_width, units.mlp, rank, size).count();
  }
  for (KvGroupPlan& group : plan.kv_groups) {
    group.reference_values_per_token = group.stored_values_per_token = 0;
    for (const int owner : group.layers) {
      const LayerPlan& layer = plan.layers[owner];
      group.reference_values_per_token += int64_t{2} * layer.num_kv_heads * layer.head_dim;
      group.stored_values_per_token += int64_t{layer.num_kv_heads} * layer.kv_entry.entry_len;
    }
  }
}

}  // namespace

bool TensorCut::is_whole() const {
  return rows.size() == 1 && rows[0].count() == whole.num_elements() / whole.shape.back() &&
         has_all_cols();
}

Result<CutUnits> CutUnitsOf(const std::vector<TensorSpec>& specs, const TensorSource& source) {
  CutUnits units;
  for (const TensorSpec& spec : specs) {
    if (spec.shape.size() < 2) continue;
    ASSIGN_OR_RETURN(const std::vector<MatrixRef> parts, source.GetStored(spec));
    CutUnit unit;
    for (const MatrixRef& part : parts) {
      const CutUnit of_part = CutUnitOf(part.format);
      unit.rows = std::lcm(unit.rows, of_part.rows);
      unit.cols = std::lcm(unit.cols, of_part.cols);
    }
    if (unit.rows > 1 || unit.cols > 1) units[spec.name] = unit;
  }
  return units;
}

Result<Shard> ShardOf(const ModelPlan& plan, int rank, int size, const CutUnits& units) {
  RETURN_IF_ERROR(CheckRanks(plan, units, size, "the model"));
  CHECK(rank >= 0 && rank < size) << rank << " of " << size;
  const Units shared = UnitsOf(units);
  Shard shard{.rank = rank, .size = size, .plan = plan};
  if (size > 1) {
    CutLayers(rank, size, shared, /*cuts_mlp=*/true, shard.plan);
    const IndexRange tokens = PartOf(plan.vocab_size, shared.vocab, rank, size);
    shard.first_token = tokens.begin;
    shard.plan.vocab_size = tokens.count();
    if (plan.moe) {
      shard.plan.moe->expert_width =
          PartOf(plan.moe->expert_width, shared.experts, rank, size).count();
    }
  }
  shard.tensors = Cut(plan, units, rank, size);
  return shard;
}

Result<AssistantShard> ShardOf(const AssistantPlan& plan, int rank, int size,
                               const CutUnits& units) {
  RETURN_IF_ERROR(CheckRanks(plan, units, size, "the assistant"));
  AssistantShard shard{.plan = plan, .tensors = Cut(plan, rank, size)};
  CutLayers(rank, size, {}, /*cuts_mlp=*/false, shard.plan.decoder);
  return shard;
}

std::vector<int> ShardSizes(const ModelPlan& plan, const CutUnits& units) {
  return SizesOf(plan, units);
}

}  // namespace lapidary
