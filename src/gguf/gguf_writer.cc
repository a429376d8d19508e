#include "gguf/gguf_writer.h"

#include "base/check.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendString(std::string& out, std::string_view text) {
  Append(out, uint64_t{text.size()});
  out += text;
}

uint64_t Padded(uint64_t bytes) {
  return (bytes + GgufWriter::kAlignment - 1) / GgufWriter::kAlignment * GgufWriter::kAlignment;
}

}  // namespace

void GgufWriter::AddKey(std::string_view key, GgufType type) {
  AppendString(pairs_, key);
  Append(pairs_, static_cast<uint32_t>(type));
  ++num_pairs_;
}

void GgufWriter::AddArrayKey(std::string_view key, GgufType element, uint64_t count) {
  AddKey(key, GgufType::kArray);
  Append(pairs_, static_cast<uint32_t>(element));
  Append(pairs_, count);
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AddKey(key, GgufType::kString);
  AppendString(pairs_, value);
}
void GgufWriter::AddU32(std::string_view key, uint32_t value) {
  AddKey(key, GgufType::kU32);
  Append(pairs_, value);
}
void GgufWriter::AddF32(std::string_view key, float value) {
  AddKey(key, GgufType::kF32);
  Append(pairs_, value);
}
void GgufWriter::AddBool(std::string_view key, bool value) {
  AddKey(key, GgufType::kBool);
  Append(pairs_, static_cast<uint8_t>(value));
}
void GgufWriter::AddU32s(std::string_view key, std::span<const uint32_t> values) {
  AddArrayKey(key, GgufType::kU32, values.size());
  for (const uint32_t value : values) Append(pairs_, value);
}
void GgufWriter::AddI32s(std::string_view key, std::span<const int32_t> values) {
  AddArrayKey(key, GgufType::kI32, values.size());
  for (const int32_t value : values) Append(pairs_, value);
}
void GgufWriter::AddF32s(std::string_view key, std::span<const float> values) {
  AddArrayKey(key, GgufType::kF32, values.size());
  for (const float value : values) Append(pairs_, value);
}
void GgufWriter::AddBools(std::string_view key, const std::vector<bool>& values) {
  AddArrayKey(key, GgufType::kBool, values.size());
  for (const bool value : values) Append(pairs_, static_cast<uint8_t>(value));
}
void GgufWriter::AddStrings(std::string_view key, std::span<const std::string_view> values) {
  AddArrayKey(key, GgufType::kString, values.size());
  for (const std::string_view value : values) AppendString(pairs_, value);
}

uint64_t GgufWriter::AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape) {
  const std::vector<int64_t> dims(shape.begin(), shape.end());
  const uint64_t begin = data_bytes_;
  AppendString(tensors_, name);
  Append(tensors_, static_cast<uint32_t>(dims.size()));
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    Append(tensors_, static_cast<uint64_t>(*dim));
  }
  Append(tensors_, GgufTypeId(dtype));
  Append(tensors_, begin);
  ++num_tensors_;
  data_bytes_ += Padded(static_cast<uint64_t>(TensorView{nullptr, dtype, dims}.num_bytes()));
  return begin;
}

std::string GgufWriter::Header() const {
  std::string header = "GGUF";
  Append(header, uint32_t{3});
  Append(header, num_tensors_);
  Append(header, num_pairs_);
  header += pairs_;
  header += tensors_;
  header.resize(Padded(header.size()));
  return header;
}

}  // namespace lapidary
