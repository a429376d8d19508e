// A file of towers from anywhere, from its header to the tensors a tower is made of: what is taken
// has the shapes of its plan, all of it inside the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "gguf/mmproj.h"
#include "tensor/tensor_view.h"
#include "towers/tower_specs.h"
#include "towers/tower_tensors.h"

namespace {

// Holds one input at a time, under a path: GGUF files are mapped.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("mmproj.gguf", MFD_CLOEXEC)) { CHECK_GE(descriptor_, 0); }
  std::filesystem::path Hold(const uint8_t* data, size_t size) const {
    CHECK_EQ(ftruncate(descriptor_, 0), 0);
    CHECK_EQ(pwrite(descriptor_, data, size, 0), static_cast<ssize_t>(size));
    return "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  const int descriptor_;
};

void CheckMessage(const lapidary::Error& error) {
  CHECK(!error.message.empty() && error.message.size() < 4000);
}

void ReadTensors(const std::filesystem::path& path,
                 const std::vector<lapidary::TensorSpec>& specs) {
  const auto tensors = lapidary::TowerTensors::Open(path, specs);
  if (!tensors.ok()) return CheckMessage(tensors.error());
  for (const lapidary::TensorSpec& spec : specs) {
    if (!lapidary::MayBeMissing(spec)) static_cast<void>(tensors->Vector(spec.name));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  const std::filesystem::path path = file.Hold(data, size);
  const auto mmproj = lapidary::GgufCheckpoint::Open(path);
  if (!mmproj.ok()) {
    CheckMessage(mmproj.error());
    return 0;
  }
  // The file stands for the model as well: both are untrusted.
  const lapidary::Json decoder = {{"hidden_size", 8}};
  const auto config = lapidary::ConfigWithTowers(*mmproj, decoder, *mmproj);
  if (!config.ok()) {
    CheckMessage(config.error());
    return 0;
  }
  const auto plan = lapidary::MakeTowersPlan(*config, "fuzz.gguf");
  if (!plan.ok()) {
    CheckMessage(plan.error());
    return 0;
  }
  if (plan->has_vision()) ReadTensors(path, lapidary::VisionTensors(*plan));
  if (plan->has_audio()) ReadTensors(path, lapidary::AudioTensors(*plan));
  return 0;
}
