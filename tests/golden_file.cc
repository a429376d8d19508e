#include "tests/golden_file.h"

#include <filesystem>

#include "base/check.h"

namespace lapidary {

TensorView Golden::Tensor(const std::string& name) const {
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.name == name) return {file.bytes().data() + entry.begin, entry.dtype, entry.shape};
  }
  CHECK(false) << "golden has no tensor " << name;
  return {};
}

std::vector<int32_t> Golden::Ids(const std::string& name) const {
  const TensorView tensor = Tensor(name);
  return {tensor.As<int32_t>(), tensor.As<int32_t>() + tensor.num_elements()};
}

Golden OpenGolden(const std::string& name) {
  const auto path =
      std::filesystem::path(LAPIDARY_SOURCE_DIR) / "tests/goldens" / (name + ".safetensors");
  Golden golden;
  golden.file = MappedFile::Open(path).value();
  golden.header = ParseSafetensors(golden.file.bytes(), path.string()).value();
  return golden;
}

// The options `lapidary synth` had when the golden was made.
SynthOptions OptionsOf(const Golden& golden) {
  SynthOptions options;
  options.seed = std::stoull(golden.header.metadata.at("seed"));
  const std::string& args = golden.header.metadata.at("synth_args");
  options.poison_unused = args.find("--poison-unused") != std::string::npos;
  if (args.find("--dtype f32") != std::string::npos) options.dtype = DType::kF32;
  if (args.find("--dtype f16") != std::string::npos) options.dtype = DType::kF16;
  return options;
}

}  // namespace lapidary
