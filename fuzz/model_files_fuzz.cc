// A model from anywhere gives tokens or an error: files of a tiny model and of its drafting
// assistant are damaged as the input says, loaded, and asked for two answers of a few tokens.
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
#include "convert/convert.h"
#include "load/load_model.h"
#include "load/stored_weights.h"
#include "model/assistant_preset.h"
#include "model/presets.h"
#include "synth/synth.h"

namespace lapidary {
namespace {

enum File { kConfig, kWeights, kAssistantConfig, kAssistantWeights, kGguf, kNumFiles };

// Tensors' names, shapes and places are in the first bytes of a file: half of the edits go there.
constexpr uint32_t kHeaderBytes = 4096;

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
    Ask(files[kGguf] != original_[kGguf] ? PathOf(kGguf) : Model());
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
      default:
        return directory_ / "model.gguf";
    }
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

  static void Ask(const std::filesystem::path& path) {
    const auto model = DescribeModel(path.string());
    if (!model.ok()) return;
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
