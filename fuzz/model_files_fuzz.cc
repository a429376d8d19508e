// A model from anywhere gives tokens or an error: files of a tiny model and of its drafting
// assistant are damaged as the input says, loaded, and asked for two answers of a few tokens. Their
// weights are also repacked as for a GPU.
//
// The input is a list of edits of the files below: {file, place (4 bytes), length, bytes}. Numbers
// are little-endian; a place is taken modulo the file's size, a length modulo 17. In a config an
// edit changes a value, the place-th, to what the bytes say; one byte in a safetensors file changes
// the type of a tensor; no bytes cut the file.
#include <spdlog/spdlog.h>
#include <stdlib.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/read_file.h"
#include "checkpoint/safetensors.h"
#include "convert/convert.h"
#include "load/load_model.h"
#include "load/stored_weights.h"
#include "model/assistant_preset.h"
#include "model/compressed_source.h"
#include "model/presets.h"
#include "model/weight_plan.h"
#include "synth/synth.h"
#include "tensor/repack.h"

namespace lapidary {
namespace {

enum File { kConfig, kWeights, kAssistantConfig, kAssistantWeights, kGguf, kCodes, kNumFiles };

// Tensors' names, shapes and places are in the first bytes of a file: half of the edits go there.
constexpr uint32_t kHeaderBytes = 4096;

// The tensors of a matrix as compressed-tensors or modelopt store it, of one kind after the other:
// any codes, with scales that they may have.
class CodeWriter {
 public:
  void Add(const TensorSpec& spec, const TensorView& plain) {
    const int64_t rows = spec.shape[0], cols = spec.shape.back();
    const bool is_linear = spec.shape.size() == 2 && spec.layer >= 0 &&
                           spec.role == TensorRole::kMatrix && cols % 32 == 0;
    if (!is_linear) return Add(spec.name, plain.dtype, spec.shape, plain.data, plain.num_bytes());
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    switch (num_modules_++ % 5) {
      case 0:
        Codes(module + ".weight_packed", DType::kI32, {rows, cols / 8});
        return Scales(module, {rows, cols / 32});
      case 1:
        Codes(module + ".weight_packed", DType::kI32, {rows, cols / 8});
        Codes(module + ".weight_zero_point", DType::kI32, {(rows * 4 + 31) / 32, cols / 32});
        return Scales(module, {rows, cols / 32});
      case 2:
        Codes(module + ".weight", DType::kI8, {rows, cols});
        return Scales(module, {rows, 1});
      case 3:
        Codes(module + ".weight", DType::kF8E4M3, {rows, cols});
        return Scales(module, {rows, 1});
      default: {
        Codes(module + ".weight", DType::kU8, {rows, cols / 2});
        const std::string ones(static_cast<size_t>(rows * cols / 16), '\x38');
        Add(module + ".weight_scale", DType::kF8E4M3, {rows, cols / 16}, ones.data(), ones.size());
        const float scale = 0.02f;
        return Add(module + ".weight_scale_2", DType::kF32, {}, &scale, sizeof(scale));
      }
    }
  }
  std::string File() { return MakeSafetensorsHeader(entries_, {}) + bytes_; }

 private:
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data,
           size_t num_bytes) {
    entries_.push_back(
        {.name = "model.language_model." + name, .dtype = dtype, .shape = std::move(shape)});
    bytes_.append(static_cast<const char*>(data), num_bytes);
  }
  void Codes(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    std::string codes(static_cast<size_t>(TensorView{nullptr, dtype, shape}.num_bytes()), '\0');
    for (char& code : codes) {
      next_ = static_cast<uint8_t>(next_ * 73 + 41);
      code = static_cast<char>(next_ == 0x7f || next_ == 0xff ? 0 : next_);
    }
    Add(name, dtype, std::move(shape), codes.data(), codes.size());
  }
  void Scales(const std::string& module, std::vector<int64_t> shape) {
    const std::vector<uint16_t> scales(static_cast<size_t>(shape[0] * shape[1]), 0x3c00);
    Add(module + ".weight_scale", DType::kBF16, std::move(shape), scales.data(), scales.size() * 2);
  }

  std::vector<SafetensorsEntry> entries_;
  std::string bytes_;
  int num_modules_ = 0;
  uint8_t next_ = 1;
};

class DamagedModel {
 public:
  DamagedModel() {
    spdlog::set_level(spdlog::level::off);
    std::string pattern = (std::filesystem::temp_directory_path() / "lapidary-fuzz-XXXXXX");
    CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
    directory_ = pattern;
    ThreadPool threads(1);
    const Json config = PresetConfig("tiny-e").value();
    CHECK_OK(WriteSyntheticCheckpoint(config, {.seed = 3}, Model(), threads));
    CHECK_OK(WriteSyntheticAssistant(TinyAssistantConfig(config, /*ordered=*/true).value(),
                                     {.seed = 3}, Model().string() + "-assistant", threads));
    const ModelDescription model = DescribeModel(Model().string()).value();
    const auto source = OpenStoredWeights(model).value();
    CHECK(ConvertToGguf(model, *source, DType::kQ8_0, PathOf(kGguf), threads).ok());
    WriteCodes(model, *source, config);
    for (int file = 0; file < kNumFiles; ++file) {
      original_[file] = ReadFile(PathOf(static_cast<File>(file)), int64_t{1} << 30).value();
    }
  }
  ~DamagedModel() { std::filesystem::remove_all(directory_); }

  // Writes the files with the edits, runs, and writes them as they were.
  void Run(std::span<const uint8_t> edits) {
    std::array<std::string, kNumFiles> files = original_;
    while (edits.size() >= kEditBytes) {
      const size_t length = std::min<size_t>(edits[5] % 17, edits.size() - kEditBytes);
      uint32_t place = 0;
      std::memcpy(&place, edits.data() + 1, sizeof(place));
      Edit(static_cast<File>(edits[0] % kNumFiles), place, edits.subspan(kEditBytes, length),
           files);
      edits = edits.subspan(kEditBytes + length);
    }
    WriteChanged(files, original_);
    Ask(files[kGguf] != original_[kGguf]     ? PathOf(kGguf)
        : files[kCodes] != original_[kCodes] ? PathOf(kCodes).parent_path()
                                             : Model());
    WriteChanged(original_, files);
  }

 private:
  static constexpr size_t kEditBytes = 6;

  std::filesystem::path Model() const { return directory_ / "model"; }
  std::filesystem::path PathOf(File file) const {
    switch (file) {
      case kConfig:
        return Model() / "config.json";
      case kWeights:
        return Model() / "model.safetensors";
      case kAssistantConfig:
        return Model().string() + "-assistant/config.json";
      case kAssistantWeights:
        return Model().string() + "-assistant/model.safetensors";
      case kCodes:
        return directory_ / "codes" / "model.safetensors";
      default:
        return directory_ / "model.gguf";
    }
  }

  void WriteCodes(const ModelDescription& model, const TensorSource& source, Json config) const {
    CodeWriter writer;
    for (const TensorSpec& spec : RequiredTensors(model.plan)) {
      writer.Add(spec, source.Get(spec).value());
    }
    const std::filesystem::path path = PathOf(kCodes);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << writer.File();
    config["quantization_config"] = {{"quant_method", "compressed-tensors"}};
    std::ofstream(path.parent_path() / "config.json") << config.dump();
    CHECK(CompressedSource::Open(path.parent_path(), model.plan).ok());
  }

  static void Edit(File file, uint32_t place, std::span<const uint8_t> bytes,
                   std::array<std::string, kNumFiles>& files) {
    if (file == kConfig || file == kAssistantConfig) return EditConfig(place, bytes, files[file]);
    if (bytes.size() == 1 && file != kGguf) return EditType(place, bytes[0], files[file]);
    std::string& contents = files[file];
    // Odd places are anywhere, even ones in the header.
    const size_t size =
        place % 2 == 0 ? std::min<size_t>(contents.size(), kHeaderBytes) : contents.size();
    const size_t begin = place / 2 % size;
    const size_t count = std::min(bytes.size(), contents.size() - begin);
    if (count == 0) {
      contents.resize(begin);
    } else {
      std::memcpy(contents.data() + begin, bytes.data(), count);
    }
  }

  // The place-th tensor of a safetensors file gets another type, of as many bytes or not.
  static void EditType(uint32_t place, uint8_t choice, std::string& contents) {
    constexpr std::string_view kStored = "\"BF16\"";
    constexpr std::array<std::string_view, 6> kTypes = {"\"F16\" ", "\"F16\" ", "\"I16\" ",
                                                        "\"F32\" ", "\"I8\"  ", "\"U8\"  "};
    size_t found = contents.find(kStored);
    for (uint32_t left = place % 97; left > 0 && found != std::string::npos; --left) {
      found = contents.find(kStored, found + 1);
    }
    if (found == std::string::npos) return;
    contents.replace(found, kStored.size(), kTypes[choice % kTypes.size()]);
  }

  // Every value has its turn: a number takes the bytes as one, anything else becomes text or null.
  static void EditConfig(uint32_t place, std::span<const uint8_t> bytes, std::string& contents) {
    Json config = Json::parse(contents);
    Json flat = config.flatten();
    if (flat.empty()) return;
    auto leaf = flat.begin();
    std::advance(leaf, place % flat.size());
    Json& value = config[Json::json_pointer(leaf.key())];
    int32_t number = 0;
    std::memcpy(&number, bytes.data(), std::min(bytes.size(), sizeof(number)));
    if (bytes.empty()) {
      value = nullptr;
    } else if (value.is_number_integer()) {
      value = bytes.size() % 2 == 0 ? Json(number) : Json(number % 512);
    } else if (value.is_number()) {
      float real = 0.0f;
      std::memcpy(&real, &number, sizeof(real));
      value = real;
    } else if (value.is_boolean()) {
      value = !value.get<bool>();
    } else {
      value = number;
    }
    contents = config.dump();
  }

  void WriteChanged(const std::array<std::string, kNumFiles>& files,
                    const std::array<std::string, kNumFiles>& before) const {
    for (int file = 0; file < kNumFiles; ++file) {
      if (files[file] == before[file]) continue;
      std::ofstream out(PathOf(static_cast<File>(file)), std::ios::binary | std::ios::trunc);
      out << files[file];
    }
  }

  // What a device's storage does with the weights before it copies them there.
  static void RepackForGpu(const ModelDescription& model) {
    const auto source = OpenStoredWeights(model);
    if (!source.ok()) return;
    const auto plan = WeightPlan::Make(RequiredTensors(model.plan), source->get(),
                                       {.reader = WeightReader::kGpu});
    if (!plan.ok()) return;
    for (const PlannedWeight& weight : plan->weights()) {
      if (!weight.is_matrix()) continue;
      std::vector<std::byte> memory(static_cast<size_t>(weight.loaded_bytes));
      std::byte* to = memory.data();
      const std::vector<MatrixRef> parts = (*source)->GetStored(weight.spec).value();
      for (const MatrixRef& part : parts) {
        RepackRows(part, 0, part.rows, weight.loaded, to);
        to += part.rows * RowBytes(weight.loaded, part.cols);
      }
    }
  }

  static void Ask(const std::filesystem::path& path) {
    const auto model = DescribeModel(path.string());
    if (!model.ok()) return;
    RepackForGpu(*model);
    LoadOptions options;
    options.num_threads = 1;
    options.limits = {.max_num_seqs = 2, .max_num_batched_tokens = 16, .max_model_len = 32};
    options.max_tokens = 32;
    options.num_sequences = 2;
    options.drafting.enabled = true;
    options.drafting.num_drafts = 2;
    auto loaded = LoadEngine(*model, options, {});
    if (!loaded.ok()) return;
    std::mutex mutex;
    std::condition_variable ended;
    int num_open = 0;
    for (const float temperature : {0.0f, 1.0f}) {
      SequenceSpec spec;
      spec.prompt = {2, 5, 7};
      spec.max_new_tokens = 4;
      SamplingParams sampling;
      sampling.temperature = temperature;
      spec.sampling = std::make_shared<SamplingParams>(sampling);
      const std::lock_guard lock(mutex);
      const auto id = loaded->engine->Submit(spec, [&](const RequestEvent& event) {
        if (!event.finish) return;
        const std::lock_guard inner(mutex);
        --num_open;
        ended.notify_all();
      });
      num_open += id.ok() ? 1 : 0;
    }
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return num_open == 0; });
  }

  std::filesystem::path directory_;
  std::array<std::string, kNumFiles> original_;
};

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static lapidary::DamagedModel model;
  model.Run(std::span(data, size));
  return 0;
}
