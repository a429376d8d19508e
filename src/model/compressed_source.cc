#include "model/compressed_source.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/huge_pages.h"
#include "base/progress.h"
#include "base/release_pages.h"
#include "model/compressed_matrix.h"

namespace lapidary {
namespace {

// Rows of a tensor that are a module of their own.
struct Part {
  std::string module;
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

std::string ModuleOf(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// The experts of a layer, one tensor in the plan, are modules one by one.
std::vector<Part> PartsOf(const TensorSpec& spec) {
  if (spec.component != TensorComponent::kExperts || spec.shape.size() != 3) {
    return {{ModuleOf(spec.name), 0, spec.num_elements() / spec.shape.back()}};
  }
  const bool is_gate_up = spec.name.ends_with("gate_up_proj");
  std::vector<Part> parts;
  int64_t row = 0;
  for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
    const auto add = [&](const char* name, int64_t num_rows) {
      parts.push_back({fmt::format("{}.{}.{}", ModuleOf(spec.name), expert, name), row, num_rows});
      row += num_rows;
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

struct Repacked {
  TensorSpec spec;
  std::vector<Part> parts;
  std::vector<CompressedMatrix> matrices;  // of the parts
  DType dtype;
};

Result<Repacked> FindParts(const FindTensor& find, const TensorSpec& spec) {
  Repacked tensor{spec, PartsOf(spec), {}, DType::kF32};
  for (const Part& part : tensor.parts) {
    ASSIGN_OR_RETURN(CompressedMatrix matrix,
                     FindCompressed(find, part.module, part.num_rows, spec.shape.back()));
    const DType dtype = matrix.RepackedType();
    // Parts of one tensor have one type; F32 holds them all.
    const bool is_first = tensor.matrices.empty();
    tensor.dtype = is_first || dtype == tensor.dtype ? dtype : DType::kF32;
    tensor.matrices.push_back(std::move(matrix));
  }
  return tensor;
}

void RepackAll(const Repacked& tensor, std::byte* out, ThreadPool& threads) {
  const int64_t row_bytes = DTypeBytes(tensor.dtype, tensor.spec.shape.back());
  for (size_t idx = 0; idx < tensor.parts.size(); ++idx) {
    const Part& part = tensor.parts[idx];
    constexpr int64_t kRows = 16;
    threads.ParallelFor(part.num_rows, kRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        tensor.matrices[idx].Repack(row, tensor.dtype, out + (part.first_row + row) * row_bytes);
      }
    });
  }
}

}  // namespace

Result<std::unique_ptr<CompressedSource>> CompressedSource::Open(
    const std::filesystem::path& directory, const ModelPlan& plan, ThreadPool& threads) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  auto source = std::unique_ptr<CompressedSource>(new CompressedSource(std::move(checkpoint)));
  // Some exports repeat the tied head as a tensor of its own.
  std::vector<std::string> unused = {kHeadName};
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) unused.push_back(spec.name);
  RETURN_IF_ERROR(source->Repack(RequiredTensors(plan), unused, directory.string(), threads));
  return source;
}

Result<std::unique_ptr<CompressedSource>> CompressedSource::Open(
    const std::filesystem::path& directory, const AssistantPlan& plan, ThreadPool& threads) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  auto source = std::unique_ptr<CompressedSource>(new CompressedSource(std::move(checkpoint)));
  RETURN_IF_ERROR(source->Repack(RequiredTensors(plan), {kTokenOrdering, kCentroids, kHeadName},
                                 directory.string(), threads));
  return source;
}

Status CompressedSource::Repack(const std::vector<TensorSpec>& required,
                                const std::vector<std::string>& unused, const std::string& where,
                                ThreadPool& threads) {
  const FindTensor find = [&](const std::string& name) { return checkpoint_.Find(name); };
  std::set<std::string, std::less<>> known(unused.begin(), unused.end()), modules;
  std::vector<Repacked> repacked;
  int64_t num_elements = 0;
  for (const TensorSpec& spec : required) {
    known.insert(spec.name);
    const TensorView* plain = find(spec.name);
    if (plain != nullptr && IsWeightDType(plain->dtype)) {
      if (plain->shape != spec.shape) {
        return MakeError("{}: tensor {} has shape {}, config.json asks for {}", where, spec.name,
                         ShapeToString(plain->shape), ShapeToString(spec.shape));
      }
      tensors_[spec.name] = *plain;
      continue;
    }
    if (spec.shape.size() < 2) return MakeError("{}: {} is missing", where, spec.name);
    Result<Repacked> tensor = FindParts(find, spec);
    if (!tensor.ok()) return MakeError("{}: {}", where, tensor.error().message);
    for (const Part& part : tensor->parts) modules.insert(part.module);
    num_elements += spec.num_elements();
    repacked.push_back(std::move(tensor).value());
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

  Progress progress("repacking weights", num_elements, Progress::Unit::kItems);
  for (const Repacked& tensor : repacked) {
    const int64_t bytes = DTypeBytes(tensor.dtype, tensor.spec.num_elements());
    auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    AdviseHugePages(memory.get(), bytes);
    RepackAll(tensor, memory.get(), threads);
    tensors_[tensor.spec.name] = {memory.get(), tensor.dtype, tensor.spec.shape};
    memory_.push_back(std::move(memory));
    for (const CompressedMatrix& matrix : tensor.matrices) {
      ReleasePages(matrix.codes, matrix.rows * matrix.code_row_bytes);
    }
    progress.Advance(tensor.spec.num_elements());
  }
  return {};
}

Result<TensorView> CompressedSource::Get(const TensorSpec& spec) const {
  const auto it = tensors_.find(spec.name);
  CHECK(it != tensors_.end()) << spec.name;  // Open() checked the whole plan.
  return it->second;
}

}  // namespace lapidary
