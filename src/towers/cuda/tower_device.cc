#include "towers/cuda/tower_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "tensor/tensor_view.h"
#include "towers/cuda/tower_memory.h"

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "the towers' weights";
constexpr int64_t kAlignment = 256;
// Images have all numbers of rows, and what suits 3,072 is a fifth slower at 2,400.
constexpr int kGemmRowStep = 128;

int64_t Aligned(int64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<uint16_t> ToBf16(const MatrixRef& matrix, int rows, int cols) {
  std::vector<uint16_t> bits(int64_t{rows} * cols, 0);
  std::vector<float> row_values;
  for (int row = 0; row < matrix.rows; ++row) {
    const MatrixRef source = matrix.Rows(row, 1);
    uint16_t* const to = bits.data() + int64_t{row} * cols;
    if (matrix.format.unit == DType::kBF16) {
      std::memcpy(to, source.data, source.bytes().data);
      continue;
    }
    row_values = ToFloats({source.As<std::byte>(), source.format.unit, {matrix.cols}});
    std::transform(row_values.begin(), row_values.end(), to, FloatToBf16);
  }
  return bits;
}

}  // namespace

TowerDevice::TowerDevice(int gpu_ordinal)
    : device_(DescribeDevice(gpu_ordinal)),
      context_{.stream = stream_.get(), .dependent = true, .device = &device_},
      gemm_(kGemmRowStep) {}

const void* TowerDevice::Upload(const void* data, size_t num_bytes) {
  const int64_t wanted = Aligned(static_cast<int64_t>(num_bytes));
  if (slabs_.empty() || slab_end_ + wanted > slabs_.back().num_bytes()) {
    slabs_.emplace_back(std::max(wanted, kTowerSlabBytes), kPurpose);
    slab_end_ = 0;
  }
  std::byte* const to = slabs_.back().As<std::byte>(slab_end_);
  slab_end_ += wanted;
  LAPIDARY_CUDA_CHECK(cudaMemcpy(to, data, num_bytes, cudaMemcpyHostToDevice));
  return to;
}

DeviceMatrix TowerDevice::UploadMatrix(const MatrixRef& matrix, int rows, int cols) {
  rows = std::max(rows, matrix.rows);
  cols = std::max(cols, matrix.cols);
  return {reinterpret_cast<const bf16*>(UploadValues(ToBf16(matrix, rows, cols))), rows, cols};
}

const float* TowerDevice::UploadVector(const std::vector<float>& values) {
  return UploadValues(values);
}

DeviceLinear TowerDevice::UploadLinear(const ClippedMatrix& matrix, int rows, int cols) {
  return {UploadMatrix(matrix.weight, rows, cols),
          {matrix.input_min, matrix.input_max},
          {matrix.output_min, matrix.output_max}};
}

DeviceLinearGroup TowerDevice::UploadGroup(const std::vector<ClippedMatrix>& matrices,
                                           int part_rows) {
  DeviceLinearGroup group;
  bool is_alike = true;
  for (const ClippedMatrix& matrix : matrices) {
    group.part_rows = std::max({group.part_rows, part_rows, matrix.weight.rows});
    group.in.push_back({matrix.input_min, matrix.input_max});
    group.out.push_back({matrix.output_min, matrix.output_max});
    is_alike &= group.in.back() == group.in.front();
  }
  CHECK_LE(std::ssize(matrices), kMaxRowInputs);
  if (is_alike) group.in.resize(1);
  const int cols = matrices[0].weight.cols;
  std::vector<uint16_t> all;
  for (const ClippedMatrix& matrix : matrices) {
    const std::vector<uint16_t> bits = ToBf16(matrix.weight, group.part_rows, cols);
    all.insert(all.end(), bits.begin(), bits.end());
  }
  group.weight = {reinterpret_cast<const bf16*>(UploadValues(all)),
                  static_cast<int>(matrices.size()) * group.part_rows, cols};
  return group;
}

void TowerDevice::Multiply(const DeviceMatrix& weight, const bf16* x, int rows, bf16* y) {
  gemm_.Run(stream(), weight.data, x, y, /*f32_output=*/false, weight.rows, weight.cols, rows);
}

void TowerDevice::Multiply(const DeviceMatrix& weight, const bf16* x, int rows, float* y) {
  gemm_.Run(stream(), weight.data, x, y, /*f32_output=*/true, weight.rows, weight.cols, rows);
}

void TowerDevice::UpdateAndMultiply(UpdateRowsCall update, const DeviceLinearGroup& group,
                                    bf16* y) {
  std::copy(group.in.begin(), group.in.end(), update.x_bounds);
  update.num_x = static_cast<int>(group.in.size());
  RunUpdateRows(context_, update);
  gemm_.Run(stream(), group.weight.data, update.x, y, /*f32_output=*/false,
            group.weight.rows / update.num_x, group.weight.cols, update.rows, update.num_x);
}

int64_t StagedArray::ReserveBytes(int64_t num_bytes) {
  CHECK_LE(end_ + num_bytes, host_.num_bytes());
  return std::exchange(end_, end_ + Aligned(num_bytes));
}

void StagedArray::Send(cudaStream_t stream) {
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(device_.As<void>(), host_.As<void>(),
                                      std::min(end_, host_.num_bytes()), cudaMemcpyHostToDevice,
                                      stream));
  end_ = 0;
}

}  // namespace lapidary::cuda
