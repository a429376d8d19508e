#include "model/tensor_sources.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/progress.h"
#include "model/synthetic_values.h"

namespace lapidary {
namespace {

constexpr size_t kMaxNamesShown = 5;
constexpr int64_t kPieceBytes = int64_t{16} << 20;

std::string JoinNames(const std::vector<std::string>& names) {
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + std::min(names.size(), kMaxNamesShown));
  for (std::string& name : shown) name = name.substr(0, 120);
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kMaxNamesShown) {
    text += fmt::format(" and {} more", names.size() - kMaxNamesShown);
  }
  return text;
}

// `known`: what may be there besides.
Status CheckTensors(const Checkpoint& checkpoint, const std::vector<TensorSpec>& required,
                    std::set<std::string, std::less<>> known, const std::string& where) {
  std::vector<std::string> missing;
  for (const TensorSpec& spec : required) {
    known.insert(spec.name);
    const TensorView* tensor = checkpoint.Find(spec.name);
    if (tensor == nullptr) {
      missing.push_back(spec.name);
    } else if (tensor->shape != spec.shape) {
      return MakeError("{}: tensor {} has shape {}, config.json asks for {}", where, spec.name,
                       ShapeToString(tensor->shape), ShapeToString(spec.shape));
    } else if (!IsWeightDType(tensor->dtype)) {
      return MakeError("{}: tensor {} is {}; weights must be BF16, F16 or F32", where, spec.name,
                       DTypeName(tensor->dtype));
    }
  }
  if (!missing.empty()) {
    return MakeError("{}: {} tensors are missing: {}", where, missing.size(), JoinNames(missing));
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    // Some exports repeat the tied head as a tensor of its own.
    if (known.contains(name) || IsTowerTensor(name) || name == "lm_head.weight") continue;
    unexpected.push_back(name);
  }
  if (!unexpected.empty()) {
    return MakeError("{}: {} tensors do not belong to the model config.json describes: {}", where,
                     unexpected.size(), JoinNames(unexpected));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(
    const std::filesystem::path& directory, const ModelPlan& plan) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  std::set<std::string, std::less<>> known;
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) known.insert(spec.name);
  RETURN_IF_ERROR(
      CheckTensors(checkpoint, RequiredTensors(plan), std::move(known), directory.string()));
  return std::unique_ptr<CheckpointSource>(new CheckpointSource(std::move(checkpoint)));
}

Result<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(
    const std::filesystem::path& directory, const AssistantPlan& plan) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  // Files of assistants with a dense head may carry the other one's tensors too.
  RETURN_IF_ERROR(CheckTensors(checkpoint, RequiredTensors(plan), {kTokenOrdering, kCentroids},
                               directory.string()));
  return std::unique_ptr<CheckpointSource>(new CheckpointSource(std::move(checkpoint)));
}

Result<TensorView> CheckpointSource::Get(const TensorSpec& spec) const {
  const TensorView* tensor = checkpoint_.Find(spec.name);
  CHECK(tensor != nullptr) << spec.name;  // Open() checked the whole plan.
  return *tensor;
}

void PrefaultWeights(const ModelPlan& plan, const TensorSource& source, ThreadPool& threads) {
  std::vector<std::span<const std::byte>> pieces;
  int64_t total_bytes = 0;
  const auto add = [&](const void* data, int64_t num_bytes) {
    for (int64_t begin = 0; begin < num_bytes; begin += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, num_bytes - begin);
      pieces.emplace_back(static_cast<const std::byte*>(data) + begin, static_cast<size_t>(bytes));
      total_bytes += bytes;
    }
  };
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    if (spec.component == TensorComponent::kPerLayerEmbedding) continue;
    if (spec.shape.size() < 2) {
      const TensorView tensor = source.Get(spec).value();
      add(tensor.data, tensor.num_bytes());
      continue;
    }
    const std::vector<MatrixRef> parts = source.GetStored(spec).value();
    for (const MatrixRef& part : parts) {
      const PlaneBytes bytes = part.bytes();
      add(part.data, bytes.data);
      add(part.scales, bytes.scales);
      add(part.offsets, bytes.offsets);
    }
  }
  // In file order, so that the disk reads ahead.
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  Progress progress("reading weights", total_bytes, Progress::Unit::kBytes);
  threads.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t idx = begin; idx < end; ++idx) {
      PrefaultMapped(pieces[idx]);
      progress.Advance(static_cast<int64_t>(pieces[idx].size()));
    }
  });
}

int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  int64_t kibibytes = 0;
  while (meminfo >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    std::getline(meminfo, unit);
  }
  return INT64_MAX;
}

Result<std::unique_ptr<DummySource>> DummySource::Make(const ModelPlan& plan, uint64_t seed,
                                                       ThreadPool& threads,
                                                       int64_t available_bytes) {
  return Make(RequiredTensors(plan), seed, threads, available_bytes);
}

Result<std::unique_ptr<DummySource>> DummySource::Make(const std::vector<TensorSpec>& specs,
                                                       uint64_t seed, ThreadPool& threads,
                                                       int64_t available_bytes) {
  constexpr DType kDType = DType::kBF16;
  constexpr int64_t kAlign = 64;
  struct Piece {
    const TensorSpec* spec;
    int64_t first_element;
    std::span<std::byte> bytes;
  };
  auto source = std::unique_ptr<DummySource>(new DummySource());
  int64_t total_bytes = 0;
  for (const TensorSpec& spec : specs) {
    total_bytes += (spec.num_elements() * DTypeSize(kDType) + kAlign - 1) / kAlign * kAlign;
  }
  // The mapping below would succeed whatever the machine has, and the process be killed later.
  if (total_bytes > available_bytes) {
    return MakeError("dummy weights need {:.1f} GB of memory and {:.1f} GB are available",
                     1e-9 * static_cast<double>(total_bytes),
                     1e-9 * static_cast<double>(available_bytes));
  }
  void* memory = mmap(nullptr, static_cast<size_t>(total_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return MakeError("cannot reserve {:.1f} GB for dummy weights",
                     1e-9 * static_cast<double>(total_bytes));
  }
  madvise(memory, static_cast<size_t>(total_bytes), MADV_HUGEPAGE);
  source->memory_ = static_cast<std::byte*>(memory);
  source->memory_bytes_ = static_cast<size_t>(total_bytes);

  std::vector<Piece> pieces;
  std::byte* next = source->memory_;
  for (const TensorSpec& spec : specs) {
    source->tensors_[spec.name] = TensorView{next, kDType, spec.shape};
    const int64_t bytes = spec.num_elements() * DTypeSize(kDType);
    for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
      const int64_t piece_bytes = std::min(kPieceBytes, bytes - begin);
      pieces.push_back(
          {&spec, begin / DTypeSize(kDType), {next + begin, static_cast<size_t>(piece_bytes)}});
    }
    next += (bytes + kAlign - 1) / kAlign * kAlign;
  }
  Progress progress("making dummy weights", total_bytes, Progress::Unit::kBytes);
  threads.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t idx = begin; idx < end; ++idx) {
      const Piece& piece = pieces[idx];
      FillSyntheticStored(*piece.spec, seed, piece.first_element, kDType, piece.bytes);
      progress.Advance(static_cast<int64_t>(piece.bytes.size()));
    }
  });
  return source;
}

DummySource::~DummySource() {
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

Result<TensorView> DummySource::Get(const TensorSpec& spec) const {
  const auto it = tensors_.find(spec.name);
  CHECK(it != tensors_.end()) << spec.name;
  return it->second;
}

}  // namespace lapidary
