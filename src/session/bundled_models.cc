#include "session/bundled_models.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace lapidary {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "LAPIDARY_MODELS_DIR";

std::vector<fs::path> ModelsDirectories() {
  if (const char* directory = std::getenv(kVariable); directory != nullptr && *directory != '\0') {
    return {directory};
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path();
  // Beside a program copied out of its tree with models/; in the tree, above its build folder;
  // where a package installs them.
  return {folder / "models", folder.parent_path() / "models",
          folder.parent_path() / "share" / "lapidary" / "models"};
}

}  // namespace

Result<std::string> FindBundled(std::string_view name) {
  std::vector<std::string> tried;
  for (const fs::path& directory : ModelsDirectories()) {
    const fs::path path = directory / name;
    std::error_code error;
    if (fs::exists(path, error)) return path.string();
    tried.push_back(path.string());
  }
  return MakeError("there is no {}; {} can name a folder that holds it",
                   fmt::join(tried, " and no "), kVariable);
}

void ResolveBundled(std::string* model) {
  std::error_code error;
  if (model->empty() || model->find('/') != std::string::npos || fs::exists(*model, error)) return;
  if (const auto path = FindBundled(*model); path.ok() && fs::is_directory(*path, error)) {
    *model = *path;
  }
}

Status ResolveModel(std::string* model) {
  ResolveBundled(model);
  if (!model->empty()) return {};
  const auto path = FindBundled(kDefaultModel);
  if (!path.ok()) {
    return MakeError("no MODEL was named and the bundled one is missing: {}", path.error().message);
  }
  *model = *path;
  spdlog::info("no MODEL was named: using the bundled toy model {}", kDefaultModel);
  return {};
}

}  // namespace lapidary
