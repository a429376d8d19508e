#include "model/weight_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/check.h"
#include "tensor/repack.h"
#include "tensor/stack_parts.h"
#include "tensor/weight_tiles.h"

namespace lapidary {
namespace {

constexpr int kPanelRows = 16;

bool IsTable(const TensorSpec& spec) {
  return spec.component == TensorComponent::kEmbedding || spec.component == TensorComponent::kHead;
}

// What the CPU's kernels read: types stored one by one, blocks, and FP8 and NVFP4. Integers become
// blocks where these hold them exactly, and F32 elsewhere. A bf16 scale is a half as well, unless
// it is tiny.
WeightFormat CpuFormat(const MatrixRef& stored) {
  if (stored.format.has_dtype() || stored.format.is_float_codes()) return stored.format;
  for (const DType dtype : {DType::kQ4_0, DType::kQ5_0, DType::kQ8_0}) {
    const WeightFormat blocks = FormatOf(dtype);
    if (CanRepack(stored.format, blocks) && FitsColumns(blocks, stored.cols) &&
        ScalesAreHalves(stored)) {
      return blocks;
    }
  }
  return FormatOf(DType::kF32);
}

// Rows of one tensor have one format; F32 holds them all.
WeightFormat CpuFormat(const std::vector<MatrixRef>& parts) {
  if (const auto stack = StackedFormat(parts)) return *stack;
  const WeightFormat format = CpuFormat(parts.front());
  if (parts.size() > 1 && format.is_float_codes()) return FormatOf(DType::kF32);
  const bool agree = std::all_of(parts.begin(), parts.end(),
                                 [&](const MatrixRef& part) { return CpuFormat(part) == format; });
  return agree ? format : FormatOf(DType::kF32);
}

// What --head-bits makes of the head; none: it stays.
std::optional<DType> HeadType(const WeightRequest& request, int64_t cols) {
  switch (request.head_bits) {
    case 4: {
      const bool is_k = request.rounding == DType::kQ4_K;
      return is_k && FitsColumns(FormatOf(DType::kQ4_K), cols) ? DType::kQ4_K : DType::kQ4_0;
    }
    case 6:
      return DType::kQ6_K;
    case 8:
      return DType::kQ8_0;
    default:
      return std::nullopt;
  }
}

bool IsHead(const TensorSpec& spec, bool has_own_head) {
  return spec.component == (has_own_head ? TensorComponent::kHead : TensorComponent::kEmbedding);
}

// --head-bits of what they cannot be: nothing is left out in silence.
Status CheckHead(const PlannedWeight& weight, const WeightRequest& request) {
  const std::string flag = fmt::format("--head-bits {}", request.head_bits);
  if (!weight.stored.is_plain()) {
    return MakeError("{}: the head is stored as {}, and only one in floats is rounded", flag,
                     FormatName(weight.stored));
  }
  const std::optional<DType> type = HeadType(request, weight.cols());
  if (type && !FitsColumns(FormatOf(*type), weight.cols())) {
    return MakeError("{}: rows of {} are no whole blocks of {}, which have {}", flag, weight.cols(),
                     DTypeName(*type), BlockOf(*type).elements);
  }
  if (type == DType::kQ6_K && request.reader == WeightReader::kGpu) {
    return MakeError("{}: on the GPU it may be 4, 8 or 16", flag);
  }
  return {};
}

// What --quantization and --head-bits make of a tensor whose format would be `format`; none: it
// stays. Matrices take the type, but for the token embeddings, which are the head too and take
// Q8_0, beside F8_E4M3 their own, and rows that are no whole blocks of Q4_K, which take Q5_0; as
// they are stay the router, the projection of per-layer inputs, rows that are no whole blocks and
// what is quantised already.
std::optional<DType> RoundedType(const TensorSpec& spec, const WeightFormat& format,
                                 const WeightRequest& request, bool has_own_head) {
  if (request.head_bits != 0 && IsHead(spec, has_own_head)) {
    return HeadType(request, spec.shape.back());
  }
  if (!request.rounding) return std::nullopt;
  const DType to = *request.rounding;
  if (spec.shape.size() < 2 || !format.is_plain() || spec.role == TensorRole::kRouter ||
      spec.component == TensorComponent::kPerLayerProjection) {
    return std::nullopt;
  }
  if (to == DType::kF8E4M3) return IsTable(spec) ? std::nullopt : std::optional(to);
  const auto fits = [&](DType dtype) { return FitsColumns(FormatOf(dtype), spec.shape.back()); };
  DType wanted = IsTable(spec) ? DType::kQ8_0 : to;
  if (wanted == DType::kQ4_K && !fits(wanted)) wanted = DType::kQ5_0;
  return fits(wanted) ? std::optional(wanted) : std::nullopt;
}

// The matrices of layers, and the table that is the head. Others are read by row.
bool BecomesPanels(const PlannedWeight& weight, bool has_own_head) {
  const TensorSpec& spec = weight.spec;
  if (weight.loaded.layout != WeightLayout::kBlocks) return false;
  const bool is_head = IsHead(spec, has_own_head);
  const bool is_of_layer = spec.layer >= 0 && spec.role == TensorRole::kMatrix;
  // Rows that are used apart from each other, those of an expert, are whole panels.
  return (is_head || is_of_layer) && spec.shape[spec.shape.size() - 2] % kPanelRows == 0;
}

// The matrices that GPU kernels multiply with in tiles: those of attention and MLP, the token
// embeddings, which are the head too, and a head of its own.
bool MayBeTiled(const PlannedWeight& weight) {
  const TensorComponent component = weight.spec.component;
  return (component == TensorComponent::kAttention || component == TensorComponent::kMlp ||
          component == TensorComponent::kEmbedding || component == TensorComponent::kHead) &&
         weight.spec.shape.size() == 2 && weight.rows() % (2 * kTileRows) == 0 &&
         weight.cols() % kTileCols == 0;
}

// Tile formats that GPU kernels have.
bool HasKernels(const WeightFormat& tiles) {
  return HasTileLayout(tiles) &&
         (tiles.scale == ScaleType::kF16 || tiles.scale == ScaleType::kBF16) &&
         (tiles.offset == OffsetType::kNone || tiles.offset == OffsetType::kMiddle);
}

// The table of per-layer embeddings, of which a step gathers rows: in the blocks it is stored in,
// or in those that hold what is stored. Rounded, it takes 8 bits.
void PlanTableForGpu(const std::vector<MatrixRef>& parts, const WeightRequest& request,
                     PlannedWeight& weight) {
  const WeightFormat q8 = FormatOf(DType::kQ8_0);
  if (request.rounding && weight.stored.is_plain() && FitsColumns(q8, weight.cols())) {
    weight.rounding = DType::kQ8_0;
    weight.loaded = q8;
  } else if (!parts.empty()) {
    const WeightFormat blocks = CpuFormat(parts);
    if (blocks.layout == WeightLayout::kBlocks) weight.loaded = blocks;
  }
}

void PlanForGpu(const std::vector<MatrixRef>& parts, const WeightRequest& request,
                bool has_own_head, PlannedWeight& weight) {
  weight.loaded = FormatOf(weight.is_matrix() ? DType::kBF16 : DType::kF32);
  if (!request.keeps_formats) return;
  if (weight.spec.component == TensorComponent::kPerLayerEmbedding) {
    return PlanTableForGpu(parts, request, weight);
  }
  if (!MayBeTiled(weight)) return;
  weight.rounding = RoundedType(weight.spec, weight.stored, request, has_own_head);
  const bool agree = std::all_of(parts.begin(), parts.end(), [&](const MatrixRef& part) {
    return part.format == weight.stored;
  });
  const WeightFormat from = weight.rounding ? FormatOf(*weight.rounding) : weight.stored;
  const std::optional<WeightFormat> tiles = TileFormatFor(from);
  if (agree && tiles && HasKernels(*tiles)) weight.loaded = *tiles;
}

// Matrices that are read as one, q, k and v or gate and up, have one format: those that differ
// become bf16.
void MakeStacksAgree(std::vector<PlannedWeight>& weights) {
  using Stack = std::tuple<int, TensorComponent, int64_t>;
  const auto stack_of = [](const PlannedWeight& weight) {
    return Stack(weight.spec.layer, weight.spec.component, weight.cols());
  };
  std::map<Stack, WeightFormat> formats;
  std::set<Stack> mixed;
  for (const PlannedWeight& weight : weights) {
    if (!weight.is_matrix() || weight.spec.layer < 0) continue;
    const auto [it, is_new] = formats.emplace(stack_of(weight), weight.loaded);
    if (!is_new && it->second != weight.loaded) mixed.insert(it->first);
  }
  for (PlannedWeight& weight : weights) {
    if (!weight.is_matrix() || weight.spec.layer < 0 || !mixed.contains(stack_of(weight))) continue;
    weight.loaded = FormatOf(DType::kBF16);
    weight.rounding.reset();
  }
}

void PlanForCpu(const std::vector<MatrixRef>& parts, const WeightRequest& request,
                bool has_own_head, PlannedWeight& weight) {
  weight.loaded = parts.empty() ? weight.stored : CpuFormat(parts);
  const bool becomes_bf16 = request.rounds_float_codes || request.reader == WeightReader::kGgufFile;
  if (becomes_bf16 && weight.loaded.is_float_codes()) weight.loaded = FormatOf(DType::kBF16);
  // The table of per-layer inputs stays where it lies: a token reads one row of it.
  const bool is_left = weight.spec.component == TensorComponent::kPerLayerEmbedding &&
                       request.reader != WeightReader::kGgufFile;
  if (!is_left) {
    weight.rounding = RoundedType(weight.spec, weight.loaded, request, has_own_head);
  }
  if (weight.rounding) {
    const bool is_float8 = *weight.rounding == DType::kF8E4M3;
    weight.loaded = is_float8 ? kRoundedFloat8 : FormatOf(*weight.rounding);
  }
  if (request.reader == WeightReader::kCpuIntegers && BecomesPanels(weight, has_own_head)) {
    weight.loaded = FormatOf(PanelDType(weight.loaded.unit));
  }
  if (request.reader == WeightReader::kGgufFile && !weight.is_matrix()) {
    weight.loaded = FormatOf(DType::kF32);
  }
}

}  // namespace

Result<WeightPlan> WeightPlan::Make(const std::vector<TensorSpec>& specs,
                                    const TensorSource* source, const WeightRequest& request) {
  const bool is_gpu = request.reader == WeightReader::kGpu;
  if (is_gpu && request.rounding && *request.rounding != DType::kQ4_0 &&
      *request.rounding != DType::kQ8_0) {
    return MakeError("--quantization {}: on the GPU it may be q4_0 or q8_0",
                     DTypeName(*request.rounding));
  }
  const bool has_own_head = std::any_of(specs.begin(), specs.end(), [](const TensorSpec& spec) {
    return spec.component == TensorComponent::kHead;
  });
  WeightPlan plan;
  for (const TensorSpec& spec : specs) {
    PlannedWeight weight{.spec = spec};
    std::vector<MatrixRef> parts;
    if (source != nullptr && weight.is_matrix()) {
      ASSIGN_OR_RETURN(parts, source->GetStored(spec));
      weight.stored = parts.front().format;
      for (const MatrixRef& part : parts) weight.stored_bytes += part.bytes().total();
    } else if (source != nullptr) {
      ASSIGN_OR_RETURN(const TensorView vector, source->Get(spec));
      weight.stored = FormatOf(vector.dtype);
      weight.stored_bytes = vector.num_bytes();
    } else {
      weight.stored_bytes = BytesOf(weight.stored, weight.rows(), weight.cols()).total();
    }
    if (request.head_bits != 0 && IsHead(spec, has_own_head)) {
      RETURN_IF_ERROR(CheckHead(weight, request));
    }
    if (is_gpu) {
      PlanForGpu(parts, request, has_own_head, weight);
    } else {
      PlanForCpu(parts, request, has_own_head, weight);
    }
    weight.is_converted = parts.size() > 1;
    plan.index_.emplace(spec.name, plan.weights_.size());
    plan.weights_.push_back(std::move(weight));
  }
  if (is_gpu) MakeStacksAgree(plan.weights_);
  for (PlannedWeight& weight : plan.weights_) {
    weight.loaded_bytes = BytesOf(weight.loaded, weight.rows(), weight.cols()).total();
    weight.is_converted =
        weight.is_converted || weight.rounding.has_value() || weight.loaded != weight.stored;
  }
  return plan;
}

WeightPlan WeightPlan::OfDummies(const std::vector<TensorSpec>& specs, WeightReader reader) {
  return Make(specs, nullptr, {.reader = reader}).value();
}

const PlannedWeight& WeightPlan::Of(const TensorSpec& spec) const {
  const auto it = index_.find(spec.name);
  CHECK(it != index_.end()) << spec.name;
  return weights_[it->second];
}

int64_t WeightPlan::loaded_bytes() const {
  int64_t bytes = 0;
  for (const PlannedWeight& weight : weights_) bytes += weight.loaded_bytes;
  return bytes;
}

std::string WeightPlan::Summary() const {
  struct Part {
    int64_t bytes = 0;
    std::map<std::string, int64_t> stored;  // what it comes from, where that is quantised
  };
  std::map<std::string, Part> parts;
  for (const PlannedWeight& weight : weights_) {
    if (!weight.is_matrix()) continue;
    Part& part = parts[FormatName(weight.loaded)];
    part.bytes += weight.loaded_bytes;
    if (weight.loaded.is_plain() && !weight.stored.is_plain()) {
      part.stored[FormatName(weight.stored)] += weight.loaded_bytes;
    }
  }
  constexpr double kGb = 1e-9;
  std::string summary;
  for (const auto& [name, part] : parts) {
    summary += fmt::format("{}{:.2f} GB as {}", summary.empty() ? "" : ", ",
                           kGb * static_cast<double>(part.bytes), name);
    std::string stored;
    for (const auto& [from, bytes] : part.stored) {
      stored += fmt::format("{}{:.2f} GB of it stored as {}", stored.empty() ? "" : ", ",
                            kGb * static_cast<double>(bytes), from);
    }
    if (!stored.empty()) summary += " (" + stored + ")";
  }
  return summary;
}

bool WeightPlan::is_quantised() const {
  return std::any_of(weights_.begin(), weights_.end(), [](const PlannedWeight& weight) {
    return weight.is_matrix() && !weight.loaded.is_plain();
  });
}

bool WeightPlan::converts_any() const {
  return std::any_of(weights_.begin(), weights_.end(),
                     [](const PlannedWeight& weight) { return weight.is_converted; });
}

WeightRequest RequestOfDrafter(const AssistantPlan& assistant, const WeightPlan& target) {
  WeightRequest request{.reader = WeightReader::kGpu,
                        .keeps_formats = !assistant.ordered_head.has_value()};
  if (request.keeps_formats && target.is_quantised()) request.rounding = DType::kQ8_0;
  return request;
}

}  // namespace lapidary
