#include "model/compressed_source.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/check.h"
#include "model/compressed_matrix.h"

namespace lapidary {
namespace {

// Rows of a tensor that are a module of their own.
struct Part {
  std::string module;
  int64_t num_rows = 0;
};

std::string ModuleOf(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// The experts of a layer, one tensor in the plan, are modules one by one.
std::vector<Part> PartsOf(const TensorSpec& spec) {
  if (spec.component != TensorComponent::kExperts || spec.shape.size() != 3) {
    return {{ModuleOf(spec.name), spec.num_elements() / spec.shape.back()}};
  }
  const bool is_gate_up = spec.name.ends_with("gate_up_proj");
  std::vector<Part> parts;
  for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
    const auto add = [&](const char* name, int64_t num_rows) {
      parts.push_back({fmt::format("{}.{}.{}", ModuleOf(spec.name), expert, name), num_rows});
    };
    if (is_gate_up) {
      add("gate_proj", spec.shape[1] / 2);
      add("up_proj", spec.shape[1] / 2);
    } else {
      add("down_proj", spec.shape[1]);
    }
  }
  return parts;
}

// What belongs to a quantised module; scales of cached values are of use to nobody here.
bool IsPartOfModule(std::string_view suffix) {
  constexpr std::string_view kSuffixes[] = {"weight",
                                            "weight_packed",
                                            "weight_scale",
                                            "weight_zero_point",
                                            "weight_shape",
                                            "weight_global_scale",
                                            "weight_scale_2",
                                            "input_scale",
                                            "k_scale",
                                            "v_scale",
                                            "input_global_scale"};
  return std::find(std::begin(kSuffixes), std::end(kSuffixes), suffix) != std::end(kSuffixes);
}

}  // namespace

Result<std::unique_ptr<CompressedSource>> CompressedSource::Open(
    const std::filesystem::path& directory, const ModelPlan& plan) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  auto source = std::unique_ptr<CompressedSource>(new CompressedSource(std::move(checkpoint)));
  // Some exports repeat the tied head as a tensor of its own.
  std::vector<std::string> unused = {kHeadName};
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) unused.push_back(spec.name);
  RETURN_IF_ERROR(source->Check(RequiredTensors(plan), unused, directory.string()));
  return source;
}

Result<std::unique_ptr<CompressedSource>> CompressedSource::Open(
    const std::filesystem::path& directory, const AssistantPlan& plan) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  auto source = std::unique_ptr<CompressedSource>(new CompressedSource(std::move(checkpoint)));
  RETURN_IF_ERROR(source->Check(RequiredTensors(plan), {kTokenOrdering, kCentroids, kHeadName},
                                directory.string()));
  return source;
}

Status CompressedSource::Check(const std::vector<TensorSpec>& required,
                               const std::vector<std::string>& unused, const std::string& where) {
  const FindTensor find = [&](const std::string& name) { return checkpoint_.Find(name); };
  std::set<std::string, std::less<>> known(unused.begin(), unused.end()), modules;
  for (const TensorSpec& spec : required) {
    known.insert(spec.name);
    const TensorView* plain = find(spec.name);
    if (plain != nullptr && IsWeightDType(plain->dtype)) {
      if (plain->shape != spec.shape) {
        return MakeError("{}: tensor {} has shape {}, config.json asks for {}", where, spec.name,
                         ShapeToString(plain->shape), ShapeToString(spec.shape));
      }
      plain_[spec.name] = *plain;
      continue;
    }
    if (spec.shape.size() < 2) return MakeError("{}: {} is missing", where, spec.name);
    std::vector<MatrixRef>& matrices = quantised_[spec.name];
    for (const Part& part : PartsOf(spec)) {
      auto matrix = FindCompressed(find, part.module, static_cast<int>(part.num_rows),
                                   static_cast<int>(spec.shape.back()));
      if (!matrix.ok()) return MakeError("{}: {}", where, matrix.error().message);
      matrices.push_back(*matrix);
      modules.insert(part.module);
    }
  }
  for (const std::string& name : unused) modules.insert(ModuleOf(name));
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (known.contains(name) || IsTowerTensor(name)) continue;
    const std::string module = ModuleOf(name);
    const bool is_cache_scale = name.ends_with(".k_scale") || name.ends_with(".v_scale");
    if (is_cache_scale ||
        (modules.contains(module) && IsPartOfModule(name.substr(module.size() + 1)))) {
      continue;
    }
    return MakeError("{}: tensor '{}' does not belong to the model config.json describes", where,
                     name);
  }
  return {};
}

Result<TensorView> CompressedSource::Get(const TensorSpec& spec) const {
  const auto it = plain_.find(spec.name);
  if (it != plain_.end()) return it->second;
  const auto quantised = quantised_.find(spec.name);
  CHECK(quantised != quantised_.end()) << spec.name;  // Open() checked the whole plan.
  return MakeError("{} is {}, which has no values of its own to be read", spec.name,
                   FormatName(quantised->second.front().format));
}

Result<std::vector<MatrixRef>> CompressedSource::GetStored(const TensorSpec& spec) const {
  const auto it = quantised_.find(spec.name);
  if (it != quantised_.end()) return it->second;
  return TensorSource::GetStored(spec);
}

}  // namespace lapidary
