#include "model/assistant_source.h"

#include <cstring>

#include "model/compressed_source.h"
#include "model/converted_source.h"
#include "model/synthetic_values.h"
#include "model/tensor_sources.h"

namespace lapidary {
namespace {

constexpr const char* kHead = "embed_tokens.weight";

}  // namespace

Result<std::unique_ptr<AssistantSource>> AssistantSource::Open(
    const std::filesystem::path& directory, bool is_compressed, const AssistantPlan& plan,
    ThreadPool& threads) {
  std::shared_ptr<const TensorSource> file;
  const TensorView* ordering = nullptr;  // A view into the file.
  const auto keep = [&](auto opened) {
    ordering = opened->checkpoint().Find(kTokenOrdering);
    file = std::move(opened);
  };
  if (is_compressed) {
    ASSIGN_OR_RETURN(auto opened, CompressedSource::Open(directory, plan));
    keep(std::move(opened));
    ASSIGN_OR_RETURN(file, ConvertForCpu(RequiredTensors(plan), std::move(file),
                                         {.rounds_float_codes = true}, threads));
  } else {
    ASSIGN_OR_RETURN(auto opened, CheckpointSource::Open(directory, plan));
    keep(std::move(opened));
  }
  auto source = OfDense(std::move(file));
  if (!plan.ordered_head) return source;
  const int64_t vocab_size = plan.decoder.vocab_size;
  if (ordering == nullptr || ordering->dtype != DType::kI64 ||
      ordering->shape != std::vector<int64_t>{vocab_size}) {
    return MakeError("{}: an ordered head needs {}, I64 [{}]", directory.string(), kTokenOrdering,
                     vocab_size);
  }
  const Status status =
      source->OrderHead(plan, {ordering->As<int64_t>(), static_cast<size_t>(vocab_size)});
  if (!status.ok()) return MakeError("{}: {}", directory.string(), status.error().message);
  return source;
}

std::unique_ptr<AssistantSource> AssistantSource::OfDense(
    std::shared_ptr<const TensorSource> file) {
  return std::unique_ptr<AssistantSource>(new AssistantSource(std::move(file)));
}

Result<std::unique_ptr<AssistantSource>> AssistantSource::MakeDummy(const AssistantPlan& plan,
                                                                    uint64_t seed,
                                                                    ThreadPool& threads) {
  ASSIGN_OR_RETURN(auto file,
                   DummySource::Make(RequiredTensors(plan), AssistantSeed(seed), threads));
  auto source = OfDense(std::move(file));
  if (plan.ordered_head) {
    RETURN_IF_ERROR(source->OrderHead(plan, SyntheticTokenOrdering(plan.decoder.vocab_size)));
  }
  return source;
}

Status AssistantSource::OrderHead(const AssistantPlan& plan, std::span<const int64_t> ordering) {
  const int64_t vocab_size = plan.decoder.vocab_size;
  std::vector<bool> is_listed(vocab_size, false);
  token_ordering_.reserve(vocab_size);
  for (const int64_t id : ordering) {
    if (id < 0 || id >= vocab_size || is_listed[id]) {
      return MakeError("{} must list every token id once; {} is outside or repeated",
                       kTokenOrdering, id);
    }
    is_listed[id] = true;
    token_ordering_.push_back(static_cast<int32_t>(id));
  }
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    if (spec.name != kHead) continue;
    ASSIGN_OR_RETURN(ordered_head_, file_->Get(spec));
  }
  const int64_t row_bytes = ordered_head_.num_bytes() / vocab_size;
  ordered_rows_.resize(ordered_head_.num_bytes());
  for (int64_t row = 0; row < vocab_size; ++row) {
    std::memcpy(ordered_rows_.data() + row * row_bytes,
                ordered_head_.data + token_ordering_[row] * row_bytes, row_bytes);
  }
  ordered_head_.data = ordered_rows_.data();
  return {};
}

Result<TensorView> AssistantSource::Get(const TensorSpec& spec) const {
  if (spec.name == kHead && !ordered_rows_.empty()) return ordered_head_;
  return file_->Get(spec);
}

}  // namespace lapidary
