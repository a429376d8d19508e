#include "executor/cuda/device_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/thread_pool.h"
#include "model/synthetic_values.h"
#include "ops/cuda/synthetic.h"

namespace lapidary::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{64} << 20;

// Elements [first, first + count) of a stored tensor as bf16.
void ConvertToBf16(const TensorView& tensor, int64_t first, int64_t count, uint16_t* out) {
  if (tensor.dtype == DType::kBF16) {
    std::memcpy(out, tensor.As<uint16_t>() + first, count * sizeof(uint16_t));
    return;
  }
  for (int64_t idx = 0; idx < count; ++idx) {
    const float value = tensor.dtype == DType::kF32
                            ? tensor.As<float>()[first + idx]
                            : F16ToFloat(tensor.As<uint16_t>()[first + idx]);
    out[idx] = FloatToBf16(value);
  }
}

}  // namespace

struct DeviceStorage::Staging {
  std::array<PinnedBuffer, 2> buffers{PinnedBuffer(kStagingBytes, "uploading weights"),
                                      PinnedBuffer(kStagingBytes, "uploading weights")};
  std::array<Event, 2> sent;
  std::array<bool, 2> used{};
  int next = 0;
  ThreadPool threads{0};
};

DeviceStorage::DeviceStorage(std::span<const TensorSpec> tensors, const TensorSource* source,
                             uint64_t dummy_seed, PlePlacement ple_placement,
                             const LaunchContext& context)
    : source_(source), dummy_seed_(dummy_seed), ple_placement_(ple_placement), context_(context) {
  const WeightBytes bytes = PlanWeights(tensors, ple_placement);
  matrices_ = DeviceBuffer(bytes.matrices, "the weights");
  vectors_ = DeviceBuffer(bytes.vectors, "the weights");
  ple_table_ = PinnedBuffer(bytes.host_table, "the per-layer embedding table (--ple host)");
  staging_ = std::make_unique<Staging>();
  if (source_ != nullptr) {
    progress_ = std::make_unique<Progress>("uploading weights", bytes.matrices + bytes.host_table,
                                           Progress::Unit::kBytes);
  }
}

DeviceStorage::~DeviceStorage() = default;

Result<MatrixRef> DeviceStorage::GetMatrix(const TensorSpec& spec) {
  bf16* to = nullptr;
  const bool on_host = IsPleTable(spec) && ple_placement_ == PlePlacement::kHost;
  if (on_host) {
    to = ple_table_.As<bf16>();
  } else {
    to = matrices_.As<bf16>(matrix_end_);
    matrix_end_ += MatrixBytes(spec);
    CHECK_LE(matrix_end_, matrices_.num_bytes());
  }
  const MatrixRef matrix = MatrixOf({reinterpret_cast<std::byte*>(to), DType::kBF16, spec.shape});
  if (source_ == nullptr) {
    RunFillSynthetic(context_, MakeSyntheticLaw(spec, dummy_seed_), spec.num_elements(), to);
    return matrix;
  }
  ASSIGN_OR_RETURN(const TensorView tensor, source_->Get(spec));
  Upload(tensor, to);
  return matrix;
}

void DeviceStorage::Upload(const TensorView& tensor, bf16* to) {
  constexpr int64_t kPiece = kStagingBytes / static_cast<int64_t>(sizeof(bf16));
  constexpr int64_t kGrain = int64_t{1} << 20;
  const int64_t total = tensor.num_elements();
  for (int64_t first = 0; first < total; first += kPiece) {
    const int64_t count = std::min(kPiece, total - first);
    const int which = std::exchange(staging_->next, 1 - staging_->next);
    if (staging_->used[which]) staging_->sent[which].Wait();
    uint16_t* piece = staging_->buffers[which].As<uint16_t>();
    staging_->threads.ParallelFor(count, kGrain, [&](int64_t begin, int64_t end, int) {
      ConvertToBf16(tensor, first + begin, end - begin, piece + begin);
    });
    LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(to + first, piece, count * sizeof(bf16), cudaMemcpyDefault,
                                        context_.stream));
    staging_->sent[which].Record(context_.stream);
    staging_->used[which] = true;
    progress_->Advance(count * static_cast<int64_t>(sizeof(bf16)));
  }
}

Result<std::vector<float>> DeviceStorage::Floats(const TensorSpec& spec) {
  if (source_ != nullptr) {
    ASSIGN_OR_RETURN(const TensorView tensor, source_->Get(spec));
    return ToFloats(tensor);
  }
  std::vector<float> values(spec.num_elements());
  FillSynthetic(spec, dummy_seed_, 0, values);
  for (float& value : values) value = Bf16ToFloat(FloatToBf16(value));
  return values;
}

Result<DeviceStorage::Vector> DeviceStorage::GetVector(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<float> values, Floats(spec));
  float* to = vectors_.As<float>(vector_end_);
  vector_end_ += VectorBytes(spec);
  CHECK_LE(vector_end_, vectors_.num_bytes());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float),
                                      cudaMemcpyHostToDevice, context_.stream));
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context_.stream));  // `values` goes away.
  return to;
}

Result<float> DeviceStorage::GetScalar(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<float> values, Floats(spec));
  return values.at(0);
}

void DeviceStorage::Finish() {
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context_.stream));
  staging_.reset();
  progress_.reset();
  source_ = nullptr;
}

}  // namespace lapidary::cuda
