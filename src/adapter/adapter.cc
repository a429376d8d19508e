#include "adapter/adapter.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <optional>

#include "adapter/expert_layout.h"
#include "adapter/module_patterns.h"
#include "base/json_fields.h"
#include "base/read_file.h"
#include "checkpoint/safetensors.h"
#include "gguf/gguf_checkpoint.h"
#include "gguf/gguf_names.h"
#include "model/tensor_specs.h"

namespace lapidary {
namespace {

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kTensorsName = "adapter_model.safetensors";
constexpr int64_t kMaxHeaderBytes = int64_t{64} << 20;  // of the file's tensors

struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// Of one expert where the matrix is one of experts; nothing where the model has no such matrix.
std::optional<MatrixShape> ShapeOf(const ModelPlan& plan, AdapterSite site, int layer_idx) {
  const int64_t hidden = plan.hidden_size;
  if (site == AdapterSite::kPerLayerModelProjection) {
    if (!plan.ple) return std::nullopt;
    return MatrixShape{int64_t{plan.ple->width} * plan.num_layers, hidden};
  }
  if (layer_idx < 0 || layer_idx >= plan.num_layers) return std::nullopt;
  const LayerPlan& layer = plan.layers[layer_idx];
  const int64_t q_rows = int64_t{layer.num_heads} * layer.head_dim;
  const int64_t kv_rows = int64_t{layer.num_kv_heads} * layer.head_dim;
  switch (site) {
    case AdapterSite::kQuery:
      return MatrixShape{q_rows, hidden};
    case AdapterSite::kKey:
      return MatrixShape{kv_rows, hidden};
    case AdapterSite::kValue:
      if (layer.k_is_v) return std::nullopt;
      return MatrixShape{kv_rows, hidden};
    case AdapterSite::kAttentionOutput:
      return MatrixShape{hidden, q_rows};
    case AdapterSite::kMlpGate:
    case AdapterSite::kMlpUp:
      return MatrixShape{layer.mlp_width, hidden};
    case AdapterSite::kMlpDown:
      return MatrixShape{hidden, layer.mlp_width};
    case AdapterSite::kRouter:
      if (!layer.has_moe) return std::nullopt;
      return MatrixShape{plan.moe->num_experts, hidden};
    case AdapterSite::kPerLayerGate:
      if (!plan.ple) return std::nullopt;
      return MatrixShape{plan.ple->width, hidden};
    case AdapterSite::kPerLayerProjection:
      if (!plan.ple) return std::nullopt;
      return MatrixShape{hidden, plan.ple->width};
    case AdapterSite::kPerLayerModelProjection:
      break;  // Above.
    case AdapterSite::kExpertGateUp:
      if (!layer.has_moe) return std::nullopt;
      return MatrixShape{int64_t{2} * plan.moe->expert_width, hidden};
    case AdapterSite::kExpertDown:
      if (!layer.has_moe) return std::nullopt;
      return MatrixShape{hidden, plan.moe->expert_width};
  }
  return std::nullopt;
}

template <typename Bits, typename IsFinite>
bool AllFinite(const std::byte* data, int64_t count, const IsFinite& is_finite) {
  for (int64_t idx = 0; idx < count; ++idx) {
    Bits bits;
    std::memcpy(&bits, data + idx * sizeof(Bits), sizeof(Bits));
    if (!is_finite(bits)) return false;
  }
  return true;
}

bool AllFinite(const std::byte* data, DType dtype, int64_t count) {
  const auto exponent_below = [](auto mask) {
    return [mask](auto bits) { return (bits & mask) != mask; };
  };
  if (dtype == DType::kF32) {
    return AllFinite<uint32_t>(data, count, exponent_below(uint32_t{0x7f800000}));
  }
  const uint16_t mask = dtype == DType::kBF16 ? 0x7f80 : 0x7c00;
  return AllFinite<uint16_t>(data, count, exponent_below(mask));
}

uint64_t DigestOf(std::string_view config, std::span<const std::byte> tensors, double scale) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  const uint64_t config_bytes = config.size();
  unsigned char bytes[EVP_MAX_MD_SIZE];
  const bool is_made = context != nullptr &&
                       EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
                       EVP_DigestUpdate(context.get(), &scale, sizeof(scale)) == 1 &&
                       EVP_DigestUpdate(context.get(), &config_bytes, sizeof(config_bytes)) == 1 &&
                       EVP_DigestUpdate(context.get(), config.data(), config.size()) == 1 &&
                       EVP_DigestUpdate(context.get(), tensors.data(), tensors.size()) == 1 &&
                       EVP_DigestFinal_ex(context.get(), bytes, nullptr) == 1;
  if (!is_made) throw std::bad_alloc();  // It fails for nothing else.
  uint64_t digest = 0;
  std::memcpy(&digest, bytes, sizeof(digest));
  return std::max<uint64_t>(digest, 1);
}

Result<std::vector<std::byte>> ReadTensors(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return MakeError("{} is not there, or not a regular file", path.string());
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return MakeError("cannot read {}: {}", path.string(), error.message());
  if (size > static_cast<uintmax_t>(max_bytes)) {
    return MakeError("{}: {} bytes are more than an adapter of this model can have ({})",
                     path.string(), size, max_bytes);
  }
  std::vector<std::byte> bytes(size);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!file || static_cast<uintmax_t>(file.gcount()) != size) {
    return MakeError("cannot read {}: {}", path.string(), std::strerror(errno));
  }
  return bytes;
}

}  // namespace

class AdapterReader {
 public:
  AdapterReader(const ModelPlan& plan, const AdapterOptions& options, std::string_view name)
      : plan_(plan), options_(options), name_(name), adapter_(new Adapter()) {}

  Result<std::shared_ptr<const Adapter>> Read(std::string_view config_text,
                                              std::vector<std::byte> tensors) {
    const std::string config_name = fmt::format("{}/{}", name_, kConfigName);
    tensors_name_ = fmt::format("{}/{}", name_, kTensorsName);
    ASSIGN_OR_RETURN(config_, ParseAdapterConfig(config_text, config_name));
    ASSIGN_OR_RETURN(ModulePatterns patterns, ModulePatterns::Make(config_, config_name));
    Take(config_text, std::move(tensors));
    ASSIGN_OR_RETURN(const SafetensorsHeader header,
                     ParseSafetensors(adapter_->tensors_, tensors_name_));
    for (const SafetensorsEntry& entry : header.entries) RETURN_IF_ERROR(AddHalf(entry));
    return PlaceAll(patterns);
  }

  // llama.cpp's: the names of GGUF with ".lora_a" and ".lora_b" behind, and one alpha for all.
  Result<std::shared_ptr<const Adapter>> ReadGguf(std::vector<std::byte> file) {
    tensors_name_ = name_;
    Take("", std::move(file));
    ASSIGN_OR_RETURN(const GgufHeader header, ParseGguf(adapter_->tensors_, name_));
    RETURN_IF_ERROR(ReadGgufConfig(header));
    std::map<std::string, std::string, std::less<>> names;  // of safetensors, by those of GGUF
    for (const auto& specs : {RequiredTensors(plan_), UnusedSharedKvTensors(plan_)}) {
      for (const TensorSpec& spec : specs) names[GgufTensorName(spec.name)] = spec.name;
    }
    std::vector<SafetensorsEntry> entries;
    entries.reserve(header.tensors.size());  // They stay where they are.
    for (const GgufTensor& tensor : header.tensors) {
      std::string_view base = tensor.name;
      const bool is_a = base.ends_with(".lora_a");
      if (is_a || base.ends_with(".lora_b")) base.remove_suffix(std::string_view(".lora_a").size());
      const auto known = names.find(base);
      if (known == names.end() || base.size() == tensor.name.size()) {
        return MakeError("{}: tensor '{}' is no low-rank delta of this model's", name_,
                         ShortUtf8(tensor.name, 160));
      }
      std::string module = known->second;
      if (module.ends_with(".weight")) module.resize(module.size() - 7);
      entries.push_back({.name = module + (is_a ? ".lora_A.weight" : ".lora_B.weight"),
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .begin = tensor.begin,
                         .end = tensor.end});
      RETURN_IF_ERROR(AddHalf(entries.back()));
    }
    ASSIGN_OR_RETURN(ModulePatterns patterns, ModulePatterns::Make(config_, name_));
    return PlaceAll(patterns);
  }

 private:
  // lora_A and lora_B of one module.
  struct Pair {
    AdapterTensorName name;
    const SafetensorsEntry* a = nullptr;
    const SafetensorsEntry* b = nullptr;
  };
  struct Half {
    std::byte* data = nullptr;
    DType dtype = DType::kF32;
    int64_t rows = 0;
    int64_t cols = 0;
  };

  void Take(std::string_view config_text, std::vector<std::byte> tensors) {
    adapter_->digest_ = DigestOf(config_text, tensors, options_.scale);
    adapter_->tensors_ = std::move(tensors);
    adapter_->sites_.resize(plan_.num_layers + 1);
    adapter_->experts_.resize(plan_.num_layers);
  }

  Status ReadGgufConfig(const GgufHeader& header) {
    const auto text = [&](std::string_view key) -> std::string_view {
      const auto value = header.metadata.find(key);
      if (value == header.metadata.end() || value->second.is_array()) return "";
      const auto strings = value->second.Strings();
      return strings ? strings->front() : "";
    };
    if (text("general.type") != "adapter" || text("adapter.type") != "lora") {
      return MakeError("{}: a GGUF file, but not of a LoRA adapter", name_);
    }
    if (!text("general.architecture").starts_with("gemma4")) {
      return MakeError("{}: an adapter of '{}', not of Gemma 4", name_,
                       ShortUtf8(text("general.architecture"), 60));
    }
    const auto value = header.metadata.find("adapter.lora.alpha");
    const auto numbers = value == header.metadata.end() ? std::nullopt : value->second.Numbers();
    const double alpha = numbers && !numbers->empty() ? numbers->front() : 0.0;
    if (!(std::abs(alpha) <= 1e6)) return MakeError("{}: adapter.lora.alpha is {}", name_, alpha);
    config_.rank = 0;  // Any.
    config_.alpha = alpha;
    has_unit_scale_ = alpha == 0.0;  // As llama.cpp reads it.
    return {};
  }

  Result<std::shared_ptr<const Adapter>> PlaceAll(ModulePatterns& patterns) {
    for (auto& [module, pair] : pairs_) {
      const Status placed = Place(pair, patterns);
      if (!placed.ok())
        return MakeError("{}: {}: {}", tensors_name_, ShortUtf8(module, 160),
                         placed.error().message);
    }
    adapter_->num_modules_ = static_cast<int>(pairs_.size());
    if (adapter_->num_applied() == 0) {
      return MakeError("{}: nothing in it changes the model", tensors_name_);
    }
    return std::shared_ptr<const Adapter>(std::move(adapter_));
  }

  // The name of a tensor; of GGUF, those of all of a layer's experts are matrices of them.
  Result<AdapterTensorName> NameOf(const SafetensorsEntry& entry) const {
    for (const AdapterSite site : {AdapterSite::kExpertGateUp, AdapterSite::kExpertDown}) {
      const std::string_view end = AdapterSiteName(site);
      const size_t at = entry.name.find(end);
      if (at == std::string::npos || entry.shape.size() != 3) continue;
      AdapterTensorName name;
      name.is_a = entry.name.ends_with(".lora_A.weight");
      name.module = entry.name.substr(0, at + end.size());
      name.site = site;
      name.layer = std::stoi(name.module.substr(std::string_view("layers.").size()));
      name.experts = AdapterTensorName::Experts::kEach;
      return name;
    }
    return ParseAdapterTensorName(entry.name, tensors_name_);
  }

  Status AddHalf(const SafetensorsEntry& entry) {
    ASSIGN_OR_RETURN(AdapterTensorName name, NameOf(entry));
    const std::string shown = ShortUtf8(entry.name, 160);
    if (!IsWeightDType(entry.dtype)) {
      return MakeError("{}: tensor '{}' is {}; F32, F16 and BF16 are supported", tensors_name_,
                       shown, DTypeName(entry.dtype));
    }
    const size_t num_dims = name.experts == AdapterTensorName::Experts::kEach ? 3 : 2;
    if (entry.shape.size() != num_dims || std::ranges::find(entry.shape, 0) != entry.shape.end()) {
      return MakeError("{}: tensor '{}' has shape {}, not that of a matrix", tensors_name_, shown,
                       ShapeToString(entry.shape));
    }
    const auto count = static_cast<int64_t>(entry.end - entry.begin) / DTypeSize(entry.dtype);
    if (!AllFinite(adapter_->tensors_.data() + entry.begin, entry.dtype, count)) {
      return MakeError("{}: tensor '{}' holds values that are not numbers", tensors_name_, shown);
    }
    Pair& pair = pairs_[name.module];
    const SafetensorsEntry*& half = name.is_a ? pair.a : pair.b;
    if (half != nullptr) {
      return MakeError("{}: tensor '{}' is there twice", tensors_name_, shown);
    }
    half = &entry;
    pair.name = std::move(name);
    return {};
  }

  // In memory that is aligned to its type.
  Half HalfOf(const SafetensorsEntry& entry) {
    std::byte* data = adapter_->tensors_.data() + entry.begin;
    if (reinterpret_cast<uintptr_t>(data) % DTypeSize(entry.dtype) != 0) {
      data = adapter_->copies_.emplace_back(data, data + (entry.end - entry.begin)).data();
    }
    return {data, entry.dtype, entry.shape[0], entry.shape[1]};
  }

  Status Place(const Pair& pair, ModulePatterns& patterns) {
    if (pair.a == nullptr || pair.b == nullptr) {
      return MakeError("its {} is missing", pair.a == nullptr ? "lora_A" : "lora_B");
    }
    switch (pair.name.experts) {
      case AdapterTensorName::Experts::kNone:
        return PlaceMatrix(pair, patterns);
      case AdapterTensorName::Experts::kStacked:
        return PlaceStacked(pair, patterns);
      case AdapterTensorName::Experts::kOne:
        return PlaceExpert(pair, patterns);
      case AdapterTensorName::Experts::kEach:
        return PlaceExperts(pair, patterns);
    }
    return {};
  }

  Status CheckRank(int64_t rank, const std::string& module, ModulePatterns& patterns) {
    if (rank > options_.max_rank) {
      return MakeError("its rank is {}, and at most {} is allowed", rank, options_.max_rank);
    }
    ASSIGN_OR_RETURN(const int expected, patterns.RankOf(module));
    if (rank != expected && expected != 0) {
      return MakeError("its rank is {}, but {} says {}", rank, kConfigName, expected);
    }
    adapter_->max_rank_ = std::max(adapter_->max_rank_, static_cast<int>(rank));
    return {};
  }

  Result<float> ScaleOf(int64_t rank, const std::string& module, ModulePatterns& patterns) {
    if (has_unit_scale_) return static_cast<float>(options_.scale);
    ASSIGN_OR_RETURN(const double alpha, patterns.AlphaOf(module));
    const double divisor =
        config_.scales_by_root ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
    return static_cast<float>(alpha / divisor * options_.scale);
  }

  // A delta for rows of a matrix of this shape.
  Result<LoraDelta> MakeDelta(const Pair& pair, const MatrixShape& shape, int64_t first_row,
                              ModulePatterns& patterns) {
    const Half a = HalfOf(*pair.a);
    const Half b = HalfOf(*pair.b);
    if (a.cols != shape.cols || b.rows != shape.rows || a.rows != b.cols) {
      return MakeError("lora_A {} and lora_B {} do not fit a matrix of {}",
                       ShapeToString(pair.a->shape), ShapeToString(pair.b->shape),
                       ShapeToString({shape.rows, shape.cols}));
    }
    RETURN_IF_ERROR(CheckRank(a.rows, pair.name.module, patterns));
    ASSIGN_OR_RETURN(const float scale, ScaleOf(a.rows, pair.name.module, patterns));
    return LoraDelta{.a = MatrixOf({a.data, a.dtype, {a.rows, a.cols}}),
                     .b = MatrixOf({b.data, b.dtype, {b.rows, b.cols}}),
                     .first_row = static_cast<int>(first_row),
                     .scale = scale};
  }

  Status PlaceMatrix(const Pair& pair, ModulePatterns& patterns) {
    const AdapterTensorName& name = pair.name;
    const std::optional<MatrixShape> shape = ShapeOf(plan_, name.site, name.layer);
    if (!shape) return MakeError("the model has no such matrix");
    if (!patterns.IsTarget(name.module, name.layer)) {
      return MakeError("{} does not name it in target_modules and layers_to_transform",
                       kConfigName);
    }
    ASSIGN_OR_RETURN(const LoraDelta delta, MakeDelta(pair, *shape, 0, patterns));
    const bool is_kv = name.site == AdapterSite::kKey || name.site == AdapterSite::kValue;
    if (is_kv && !plan_.layers[name.layer].owns_kv()) {
      ++adapter_->num_ignored_;
      return {};
    }
    LoraDelta& place = adapter_->sites_[name.layer + 1][static_cast<int>(name.site)];
    if (place.a.data != nullptr) return MakeError("its matrix has a delta of another name too");
    place = delta;
    return {};
  }

  std::vector<LoraDelta>& ExpertPlace(AdapterSite site, int layer, int expert) {
    auto& experts = adapter_->experts_[layer][site == AdapterSite::kExpertDown ? 1 : 0];
    experts.resize(plan_.moe->num_experts);
    return experts[expert];
  }

  // Deltas of an expert's matrix must not change the same rows.
  Status AddExpert(AdapterSite site, int layer, int expert, const LoraDelta& delta) {
    std::vector<LoraDelta>& place = ExpertPlace(site, layer, expert);
    for (const LoraDelta& other : place) {
      if (delta.first_row < other.first_row + other.b.rows &&
          other.first_row < delta.first_row + delta.b.rows) {
        return MakeError("its matrix has a delta of another name too");
      }
    }
    place.push_back(delta);
    return {};
  }

  Status PlaceExpert(const Pair& pair, ModulePatterns& patterns) {
    const AdapterTensorName& name = pair.name;
    std::optional<MatrixShape> shape = ShapeOf(plan_, name.site, name.layer);
    if (!shape) return MakeError("the model has no such matrix");
    if (name.expert >= plan_.moe->num_experts) {
      return MakeError("the model has {} experts", plan_.moe->num_experts);
    }
    int64_t first_row = 0;
    if (name.part != AdapterTensorName::Part::kWhole) {
      shape->rows /= 2;
      if (name.part == AdapterTensorName::Part::kUp) first_row = shape->rows;
    }
    ASSIGN_OR_RETURN(const LoraDelta delta, MakeDelta(pair, *shape, first_row, patterns));
    return AddExpert(name.site, name.layer, name.expert, delta);
  }

  // A [experts, rank, in], B [experts, out, rank].
  Status PlaceExperts(const Pair& pair, ModulePatterns& patterns) {
    const AdapterTensorName& name = pair.name;
    const std::optional<MatrixShape> shape = ShapeOf(plan_, name.site, name.layer);
    if (!shape) return MakeError("the model has no such matrix");
    const int64_t num_experts = plan_.moe->num_experts;
    const int64_t rank = pair.a->shape[1];
    if (pair.a->shape != std::vector<int64_t>{num_experts, rank, shape->cols} ||
        pair.b->shape != std::vector<int64_t>{num_experts, shape->rows, rank}) {
      return MakeError("lora_a {} and lora_b {} do not fit {} experts of {}",
                       ShapeToString(pair.a->shape), ShapeToString(pair.b->shape), num_experts,
                       ShapeToString({shape->rows, shape->cols}));
    }
    RETURN_IF_ERROR(CheckRank(rank, name.module, patterns));
    ASSIGN_OR_RETURN(const float scale, ScaleOf(rank, name.module, patterns));
    const Half a = HalfOf(*pair.a);
    const Half b = HalfOf(*pair.b);
    return AddExperts(name.site, name.layer, *shape, a, b, rank, scale);
  }

  // Halves that lie expert after expert.
  Status AddExperts(AdapterSite site, int layer, const MatrixShape& shape, const Half& a,
                    const Half& b, int64_t rank, float scale) {
    const int64_t a_bytes = rank * shape.cols * DTypeSize(a.dtype);
    const int64_t b_bytes = rank * shape.rows * DTypeSize(b.dtype);
    for (int expert = 0; expert < plan_.moe->num_experts; ++expert) {
      RETURN_IF_ERROR(
          AddExpert(site, layer, expert,
                    {.a = MatrixOf({a.data + expert * a_bytes, a.dtype, {rank, shape.cols}}),
                     .b = MatrixOf({b.data + expert * b_bytes, b.dtype, {shape.rows, rank}}),
                     .scale = scale}));
    }
    return {};
  }

  // All experts of a layer: A [experts * rank, in], one expert behind another; B [out, rank *
  // experts], where those of one rank lie side by side. PEFT before 0.19 took `in` for `out`.
  Status PlaceStacked(const Pair& pair, ModulePatterns& patterns) {
    const int layer = pair.name.layer;
    if (!ShapeOf(plan_, AdapterSite::kExpertDown, layer)) {
      return MakeError("the model has no such matrix");
    }
    const int64_t num_experts = plan_.moe->num_experts;
    Half a = HalfOf(*pair.a);
    Half b = HalfOf(*pair.b);
    const auto fits = [&](AdapterSite site, bool is_swapped) {
      const MatrixShape shape = *ShapeOf(plan_, site, layer);
      return a.cols == (is_swapped ? shape.rows : shape.cols) &&
             b.rows == (is_swapped ? shape.cols : shape.rows);
    };
    constexpr AdapterSite kGateUp = AdapterSite::kExpertGateUp;
    constexpr AdapterSite kDown = AdapterSite::kExpertDown;
    // Widths tell them apart; where in and out are the same, it is the form of today.
    const bool is_plain = fits(kGateUp, false) || fits(kDown, false);
    const AdapterSite site = fits(kGateUp, !is_plain) ? kGateUp : kDown;
    if (!fits(site, !is_plain) || a.rows % num_experts != 0 || b.cols != a.rows) {
      return MakeError(
          "lora_A {} and lora_B {} fit neither gate_up_proj nor down_proj of {} experts",
          ShapeToString(pair.a->shape), ShapeToString(pair.b->shape), num_experts);
    }
    const MatrixShape shape = *ShapeOf(plan_, site, layer);
    const int64_t rank = a.rows / num_experts;
    std::string parameter = pair.name.module;
    constexpr std::string_view kBaseLayer = ".base_layer";
    if (parameter.ends_with(kBaseLayer)) parameter.resize(parameter.size() - kBaseLayer.size());
    parameter += site == kGateUp ? ".gate_up_proj" : ".down_proj";
    if (!patterns.IsTargetParameter(parameter)) {
      return MakeError("{} does not name {} in target_parameters", kConfigName, parameter);
    }
    RETURN_IF_ERROR(CheckRank(rank, parameter, patterns));
    ASSIGN_OR_RETURN(const float scale, ScaleOf(rank, parameter, patterns));
    // Into A [experts, rank, in] and B [experts, out, rank].
    if (DTypeSize(a.dtype) != DTypeSize(b.dtype)) {
      return MakeError("lora_A is {}, lora_B {}: they must be of one type", DTypeName(a.dtype),
                       DTypeName(b.dtype));
    }
    const bool is_wide = DTypeSize(a.dtype) == 4;
    if (is_plain) {
      (is_wide ? MoveLastFirst<uint32_t> : MoveLastFirst<uint16_t>)(b.data, b.rows, rank,
                                                                    num_experts, /*swap=*/false);
    } else {
      (is_wide ? SwapLastTwo<uint32_t> : SwapLastTwo<uint16_t>)(a.data, num_experts, rank, a.cols);
      (is_wide ? MoveLastFirst<uint32_t> : MoveLastFirst<uint16_t>)(b.data, b.rows, rank,
                                                                    num_experts, /*swap=*/true);
      std::swap(a, b);
    }
    return AddExperts(site, layer, shape, a, b, rank, scale);
  }

  const ModelPlan& plan_;
  const AdapterOptions options_;
  const std::string_view name_;
  std::string tensors_name_;
  AdapterConfig config_;
  bool has_unit_scale_ = false;  // whatever the rank
  std::shared_ptr<Adapter> adapter_;
  std::map<std::string, Pair> pairs_;  // by module
};

int64_t MaxAdapterBytes(const ModelPlan& plan, int max_rank) {
  int64_t values = 0;  // of rank 1
  for (int layer = -1; layer < plan.num_layers; ++layer) {
    for (int site = 0; site < kNumAdapterSites; ++site) {
      const bool is_outside =
          static_cast<AdapterSite>(site) == AdapterSite::kPerLayerModelProjection;
      if (is_outside != (layer < 0)) continue;
      const auto shape = ShapeOf(plan, static_cast<AdapterSite>(site), layer);
      if (!shape) continue;
      const bool is_expert = site >= static_cast<int>(AdapterSite::kExpertGateUp);
      values += (shape->rows + 2 * shape->cols) * (is_expert ? plan.moe->num_experts : 1);
    }
  }
  return values * max_rank * DTypeSize(DType::kF32) + kMaxHeaderBytes;
}

std::string Adapter::Summary() const {
  std::string text =
      fmt::format("{} of {} modules, rank {}", num_applied(), num_modules(), max_rank());
  if (num_ignored() > 0) {
    text +=
        fmt::format("; {} k_proj and v_proj of layers that read another layer's KV have no effect",
                    num_ignored());
  }
  return text;
}

Result<std::shared_ptr<const Adapter>> Adapter::Load(const std::filesystem::path& directory,
                                                     const ModelPlan& plan,
                                                     const AdapterOptions& options) {
  std::error_code error;
  if (IsGgufFile(directory)) {
    ASSIGN_OR_RETURN(std::vector<std::byte> file,
                     ReadTensors(directory, MaxAdapterBytes(plan, options.max_rank)));
    return ParseGguf(std::move(file), plan, options, directory.string());
  }
  if (!std::filesystem::is_directory(directory, error)) {
    return MakeError(
        "{} is not a directory; a LoRA adapter is one with adapter_config.json and "
        "adapter_model.safetensors, or a GGUF file",
        directory.string());
  }
  ASSIGN_OR_RETURN(const std::string config,
                   ReadFile(directory / kConfigName, kMaxConfigFileBytes));
  const std::filesystem::path tensors_path = directory / kTensorsName;
  if (!std::filesystem::exists(tensors_path, error) &&
      std::filesystem::exists(directory / "adapter_model.bin", error)) {
    return MakeError(
        "{}: adapter_model.bin is not read, since such a file can hold any program; "
        "save the adapter as safetensors",
        directory.string());
  }
  ASSIGN_OR_RETURN(std::vector<std::byte> tensors,
                   ReadTensors(tensors_path, MaxAdapterBytes(plan, options.max_rank)));
  return Parse(config, std::move(tensors), plan, options, directory.string());
}

Result<std::shared_ptr<const Adapter>> Adapter::Parse(std::string_view config,
                                                      std::vector<std::byte> tensors,
                                                      const ModelPlan& plan,
                                                      const AdapterOptions& options,
                                                      std::string_view name) {
  return AdapterReader(plan, options, name).Read(config, std::move(tensors));
}

Result<std::shared_ptr<const Adapter>> Adapter::ParseGguf(std::vector<std::byte> file,
                                                          const ModelPlan& plan,
                                                          const AdapterOptions& options,
                                                          std::string_view name) {
  return AdapterReader(plan, options, name).ReadGguf(std::move(file));
}

}  // namespace lapidary
