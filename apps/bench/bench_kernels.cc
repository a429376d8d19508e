// `lapidary bench kernels`: each CUDA kernel by itself, at a model's shapes.
#include <spdlog/spdlog.h>

#include <fstream>

#include "apps/bench/bench_commands.h"
#include "apps/device_flag.h"
#include "base/progress.h"
#include "bench_kernels/kernel_bench.h"
#include "load/model_directory.h"
#include "model/presets.h"
#include "tensor/tile_row.h"

namespace lapidary {
namespace {

constexpr const char* kPublished[] = {"e2b", "e4b", "12b", "26b-a4b", "31b"};

struct KernelsFlags {
  std::string preset = "e4b";
  DeviceRequest device = DeviceRequest::kCuda;
  KernelBenchOptions bench;
  std::string weights = "bf16";
  std::string write_algorithms;
  bool json = false;
  std::string output_json;
};

// The GPU, or what is missing.
Result<DeviceChoice> ChooseGpu(DeviceRequest request) {
  if (request == DeviceRequest::kCpu) {
    return MakeError(
        "bench kernels times CUDA kernels: --device cpu has none (the CPU's operations have "
        "programs of their own, build/src/*/*_bench)");
  }
  return ChooseDevice(DeviceRequest::kCuda, ProbeDeviceFacts());
}

Status WriteFile(const std::string& path, const char* flag, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) return MakeError("{} {}: cannot be written", flag, path);
  return {};
}

Status WriteAlgorithms(const KernelsFlags& flags, const DeviceChoice& gpu) {
  std::vector<NamedPlan> models;
  for (const char* preset : kPublished) {
    ASSIGN_OR_RETURN(ModelDescription description, DescribeModel(preset));
    models.emplace_back(preset, std::move(description.plan));
  }
  // What cannot be written is said before the search.
  RETURN_IF_ERROR(WriteFile(flags.write_algorithms, "--write-algorithms", ""));
  std::optional<Progress> progress;
  ASSIGN_OR_RETURN(const AlgorithmSearch search,
                   SearchAlgorithms(models, gpu.gpu_ordinal, [&](int64_t, int64_t total) {
                     if (!progress) progress.emplace("products", total, Progress::Unit::kItems);
                     progress->Advance(1);
                   }));
  progress.reset();
  RETURN_IF_ERROR(WriteFile(flags.write_algorithms, "--write-algorithms", search.table));
  fmt::print("{} of {} products have a faster algorithm than cuBLASLt's heuristic takes: {}\n",
             search.num_kept, search.num_products, flags.write_algorithms);
  return {};
}

Status BenchKernelsCommand(const KernelsFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceChoice gpu, ChooseGpu(flags.device));
  if (!flags.write_algorithms.empty()) return WriteAlgorithms(flags, gpu);
  ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(flags.preset));
  KernelBenchOptions options = flags.bench;
  options.gpu_ordinal = gpu.gpu_ordinal;
  if (flags.weights != "bf16") {
    const DType stored = flags.weights == "q4_0" ? DType::kQ4_0 : DType::kQ8_0;
    options.weights = TileFormatFor(FormatOf(stored)).value();
  }
  options.on_row = [](const KernelRow& row) {
    spdlog::debug("{}: {:.2f} us", row.label(), row.us);
  };
  ASSIGN_OR_RETURN(const KernelBenchResult result,
                   BenchKernels(flags.preset, description.plan, options));
  const nlohmann::ordered_json json = {{"bench", "kernels"},
                                       {"model", flags.preset},
                                       {"device", DeviceName(gpu.kind)},
                                       {"floor_gbps", 1e-9 * kFloorBytesPerSecond},
                                       {"floor_tflops", 1e-12 * kFloorFlopsPerSecond},
                                       {"copy_gbps", result.copy_gbps},
                                       {"kernels", ToJson(result.rows)}};
  if (flags.json) {
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print(
        "{}floor: {:.1f} TB/s or {:.0f} TFLOP/s; a copy on this device reaches {:.2f} TB/s\n",
        FormatKernelRows(result.rows), 1e-12 * kFloorBytesPerSecond, 1e-12 * kFloorFlopsPerSecond,
        1e-3 * result.copy_gbps);
  }
  if (flags.output_json.empty()) return {};
  return WriteFile(flags.output_json, "--output-json", json.dump(1) + "\n");
}

}  // namespace

void AddBenchKernels(CommandLine& command_line, CLI::App* group) {
  auto flags = std::make_shared<KernelsFlags>();
  CLI::App* command =
      command_line.AddTo(group, "kernels", "Each CUDA kernel by itself, at a model's shapes",
                         [flags] { return BenchKernelsCommand(*flags); });
  command->add_option("--preset", flags->preset, "Whose shapes: e2b e4b 12b 26b-a4b 31b ...")
      ->check(CLI::IsMember(PresetNames()))
      ->capture_default_str();
  AddDeviceFlag(command, &flags->device);
  command->add_option("--shapes", flags->bench.shapes,
                      "Only rows that this regular expression finds in \"NAME SHAPE rows N\", such "
                      "as 'gate_up|attention_full decode'");
  command
      ->add_option("--rows", flags->bench.rows,
                   "Rows of products and small kernels (default: 1 to 2048 in eleven steps)")
      ->delimiter(',');
  command
      ->add_option(
          "--weights", flags->weights,
          "Format of the products' weights: bf16, q4_0 or q8_0; with others than bf16 only "
          "products are timed")
      ->check(CLI::IsMember({"bf16", "q4_0", "q8_0"}))
      ->capture_default_str();
  command->add_flag("--variants", flags->bench.variants,
                    "Also other plans of the same kernels, batch-invariant ones among them");
  command->add_option("--write-algorithms", flags->write_algorithms,
                      "Instead: try cuBLASLt's algorithms for the products of all five models and "
                      "write those that beat its heuristic by 3% to this file; "
                      "src/ops/cuda/gemm_algorithms.inc is compiled in");
  command->add_flag("--json", flags->json, "Print the result as one JSON object");
  command->add_option("--output-json", flags->output_json,
                      "Write the JSON object to this file as well");
  command->footer(
      "Times are medians of graph replays. Products and attention read other weights and pages in "
      "every launch; small kernels find their inputs in the cache, as in a step. The floor is the "
      "larger of bytes that must move and operations at an H200's measured rates. The baseline of "
      "a product is cuBLASLt's product alone, without what our call does before and behind it; "
      "tools/attention_baseline.py times PyTorch's attention at the same shapes and "
      "tools/compare_bench.py puts it into a result.\n"
      "JSON keys: bench, model, device, floor_gbps, floor_tflops, copy_gbps, kernels[{name, shape, "
      "variant, rows, us, tflops, gbps, floor_us, floor_share, baseline, baseline_us, ratio "
      "(baseline_us / us), attention{} (its dimensions)}].");
}

}  // namespace lapidary
