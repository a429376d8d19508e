// Adapter files made in memory, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "gguf/gguf_writer.h"

namespace lapidary {

// adapter_model.safetensors; values count up within a tensor, in steps of 1/64 around 0.
class AdapterFile {
 public:
  AdapterFile& Add(std::string name, std::vector<int64_t> shape, DType dtype = DType::kF32) {
    entries_.push_back({.name = std::move(name), .dtype = dtype, .shape = std::move(shape)});
    return *this;
  }
  // Both halves of a module, of which this is the name without "base_model.model.".
  AdapterFile& AddPair(const std::string& module, int64_t rows, int64_t cols, int64_t rank,
                       DType dtype = DType::kF32) {
    Add("base_model.model." + module + ".lora_A.weight", {rank, cols}, dtype);
    return Add("base_model.model." + module + ".lora_B.weight", {rows, rank}, dtype);
  }
  // Bytes of header that nobody needs, so that the data is not aligned.
  AdapterFile& Misalign() {
    padding_ = 1;
    return *this;
  }

  // The same in GGUF, of tensors that have its names.
  std::vector<std::byte> GgufBytes(std::optional<float> alpha,
                                   const std::string& type = "adapter") const {
    GgufWriter writer;
    writer.AddString("general.type", type);
    writer.AddString("general.architecture", "gemma4");
    writer.AddString("adapter.type", "lora");
    if (alpha) writer.AddF32("adapter.lora.alpha", *alpha);
    for (const SafetensorsEntry& entry : entries_) {
      writer.AddTensor(entry.name, entry.dtype, entry.shape);
    }
    const std::string header = writer.Header();
    std::vector<std::byte> bytes(header.size());
    std::memcpy(bytes.data(), header.data(), header.size());
    for (const SafetensorsEntry& entry : entries_) {
      AppendValues(entry, &bytes);
      while ((bytes.size() - header.size()) % GgufWriter::kAlignment != 0) bytes.emplace_back();
    }
    return bytes;
  }

  static float Value(int64_t idx) { return static_cast<float>(idx % 37 - 18) / 64.0f; }

  std::vector<std::byte> Bytes() const {
    std::vector<SafetensorsEntry> entries = entries_;
    std::string text = MakeSafetensorsHeader(entries, {{"format", "pt"}});
    text.append(padding_, ' ');
    const uint64_t header_bytes = text.size() - sizeof(uint64_t);
    std::memcpy(text.data(), &header_bytes, sizeof(header_bytes));
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    for (const SafetensorsEntry& entry : entries) AppendValues(entry, &bytes);
    return bytes;
  }

 private:
  static void AppendValues(const SafetensorsEntry& entry, std::vector<std::byte>* bytes) {
    int64_t count = 1;
    for (const int64_t dim : entry.shape) count *= dim;
    for (int64_t idx = 0; idx < count; ++idx) Append(entry.dtype, Value(idx), bytes);
  }
  static void Append(DType dtype, float value, std::vector<std::byte>* bytes) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if (dtype == DType::kBF16) bits = FloatToBf16(value);
    if (dtype == DType::kF16) bits = FloatToF16(value);
    std::byte raw[sizeof(double)] = {};
    std::memcpy(raw, &bits, sizeof(bits));
    bytes->insert(bytes->end(), raw, raw + DTypeSize(dtype));
  }

  std::vector<SafetensorsEntry> entries_;
  size_t padding_ = 0;
};

}  // namespace lapidary
