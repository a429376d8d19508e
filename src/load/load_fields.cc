#include "load/load_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "load/memory_plan.h"
#include "load/quantisation_names.h"
#include "model/shard.h"

namespace lapidary {
namespace {

using Kind = LoadField::Kind;
using Value = LoadField::Value;

constexpr const char* kModel = "Model";
constexpr const char* kGpu = "GPU";

std::vector<LoadField> MakeFields() {
  return {
      {"--load-format",
       kModel,
       Kind::kChoice,
       "auto: the checkpoint's weights; dummy: random",
       "auto",
       [](LoadOptions& options, const Value& value) {
         options.format = value.text == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
       },
       0,
       0,
       {"auto", "dummy"}},
      {"--quantization", kModel, Kind::kChoice,
       "Round matrices while loading: to blocks of 8.5 (q8_0, which int8 is too) or 4.5 (q4_0) "
       "bits a weight; on the CPU also q4_k, slower and closer than q4_0, and fp8, 8 bits and a "
       "scale for each row; default: as they are stored",
       "",
       [](LoadOptions& options, const Value& value) {
         options.quantisation = QuantisationByName(value.text);
       },
       0, 0, QuantisationNames()},
      {"--head-bits",
       kModel,
       Kind::kChoice,
       "Bits of the head, which are the token embeddings where it has none of its own: 4 "
       "or 8 (blocks as of --quantization), 6 (Q6_K, on the CPU), 16 (as stored); "
       "default: 8 beside q8_0, q4_0 and q4_k, else as stored",
       "",
       [](LoadOptions& options, const Value& value) { options.head_bits = std::stoi(value.text); },
       0,
       0,
       {"4", "6", "8", "16"}},
      {"--fast-math", kModel, Kind::kSwitch,
       "Round activations to 8 bits where weights are in blocks, and to bf16 where weights are and "
       "the processor has AMX: faster, and not exact (CPU)",
       "", [](LoadOptions& options, const Value& value) { options.fast_math = value.is_on; }},
      {"--threads", kModel, Kind::kInt, "CPU threads; 0: one per core", "0",
       [](LoadOptions& options, const Value& value) {
         options.num_threads = static_cast<int>(value.integer);
       },
       0, 1024},
      {"--numa",
       kModel,
       Kind::kChoice,
       "With several NUMA nodes: distribute threads and the weights that are made while "
       "loading over all nodes, isolate them on the one the program starts on, or off",
       "distribute",
       [](LoadOptions& options, const Value& value) {
         options.numa = value.text == "isolate" ? NumaMode::kIsolate
                        : value.text == "off"   ? NumaMode::kOff
                                                : NumaMode::kDistribute;
       },
       0,
       0,
       {"distribute", "isolate", "off"}},
      {"--pin-threads", kModel, Kind::kSwitch,
       "Bind each CPU thread to a core of its own: for machines that do nothing "
       "else; slower where others use the cores",
       "", [](LoadOptions& options, const Value& value) { options.pin_threads = value.is_on; }},
      {"--tensor-parallel-size", kModel, Kind::kInt,
       "Ranks that share the model, also as -tp; on the CPU they take turns, which is "
       "no faster, on a GPU there is one",
       "1",
       [](LoadOptions& options, const Value& value) {
         options.num_ranks = static_cast<int>(value.integer);
       },
       1, kMaxRanks},
      {"--kv-cache-dtype",
       kModel,
       Kind::kChoice,
       "Format of cached keys and values. int8 and fp8 (E4M3) have a scale for 128 values; int8 "
       "loses little, fp8 some ten times as much. auto: float32 on the CPU, bfloat16 on a GPU, "
       "which has no other yet",
       "auto",
       [](LoadOptions& options, const Value& value) {
         const Result<KvFormat> format = ParseKvFormat(value.text);
         options.kv_format = format.ok() ? std::optional(*format) : std::nullopt;
       },
       0,
       0,
       {"auto", "float32", "bfloat16", "int8", "fp8", "fp8_e4m3"}},
      {"--gpu-memory-utilization", kGpu, Kind::kNumber,
       "Share of the GPU's memory that this process may use, whoever else is there; "
       "what is left of it goes to KV",
       "0.9",
       [](LoadOptions& options, const Value& value) { options.cuda.memory.share = value.number; },
       0.01, 1.0},
      {"--gpu-memory", kGpu, Kind::kBytes,
       "The most GPU memory that this process may use, all in all: 16GB, 24GiB "
       "(default: no cap but --gpu-memory-utilization)",
       "",
       [](LoadOptions& options, const Value& value) { options.cuda.memory.cap = value.integer; }},
      {"--ple",
       kGpu,
       Kind::kChoice,
       "Where the per-layer embedding table (E2B, E4B) lives: on the device, or "
       "page-locked on the host, where it frees 5 GB of GPU memory",
       "device",
       [](LoadOptions& options, const Value& value) {
         options.cuda.ple_placement =
             value.text == "host" ? cuda::PlePlacement::kHost : cuda::PlePlacement::kDevice;
       },
       0,
       0,
       {"device", "host"}},
      {"--batch-invariant", kGpu, Kind::kSwitch,
       "Bitwise the same answers whatever else runs; somewhat slower", "",
       [](LoadOptions& options, const Value& value) {
         options.cuda.batch_invariant = value.is_on;
       }},
      {"--enforce-eager", kGpu, Kind::kSwitch, "Launch kernels one by one, no graphs", "",
       [](LoadOptions& options, const Value& value) { options.cuda.use_graphs = !value.is_on; }},
      {"--cuda-launch-blocking", kGpu, Kind::kSwitch,
       "Wait for every kernel: slow, but a fault names the kernel", "",
       [](LoadOptions& options, const Value& value) { options.cuda.synchronous = value.is_on; }},
  };
}

template <typename T>
bool ReadNumber(const std::string& text, T* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool IsOneOf(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool IsSameName(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char left, char right) {
    return left == right || (left == '_' && right == '-');
  });
}

}  // namespace

const std::vector<LoadField>& LoadFields() {
  static const auto* const fields = new std::vector<LoadField>(MakeFields());
  return *fields;
}

const LoadField* FindLoadField(std::string_view name) {
  for (const LoadField& field : LoadFields()) {
    if (IsSameName(name, field.name())) return &field;
  }
  return nullptr;
}

Status SetLoadField(std::string_view name, const std::string& text, LoadOptions* options) {
  const LoadField* field = FindLoadField(name);
  if (field == nullptr) return MakeError("there is no option {}", name);
  Value value;
  value.text = text;
  switch (field->kind) {
    case Kind::kSwitch:
      value.is_on = IsOneOf(text, {"true", "on", "yes", "1"});
      if (!value.is_on && !IsOneOf(text, {"false", "off", "no", "0"})) {
        return MakeError("{} must be true or false", name);
      }
      break;
    case Kind::kInt:
      if (!ReadNumber(text, &value.integer) || static_cast<double>(value.integer) < field->min ||
          static_cast<double>(value.integer) > field->max) {
        return MakeError("{} must be a whole number from {} to {}", name, field->min, field->max);
      }
      break;
    case Kind::kNumber:
      if (!ReadNumber(text, &value.number) || !(value.number >= field->min) ||
          !(value.number <= field->max)) {
        return MakeError("{} must be a number from {} to {}", name, field->min, field->max);
      }
      break;
    case Kind::kBytes: {
      const Result<int64_t> num_bytes = ParseBytes(text);
      if (!num_bytes.ok()) return MakeError("{}: {}", name, num_bytes.error().message);
      if (*num_bytes < 1) return MakeError("{} must be at least 1 byte", name);
      value.integer = *num_bytes;
      break;
    }
    case Kind::kChoice:
      if (std::find(field->choices.begin(), field->choices.end(), text) == field->choices.end()) {
        return MakeError("{} '{}' is not there; it must be one of {}", name, text.substr(0, 60),
                         fmt::join(field->choices, ", "));
      }
      break;
  }
  field->set(*options, value);
  return {};
}

}  // namespace lapidary
