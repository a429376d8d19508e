#include "server/route_path.h"

#include <algorithm>
#include <array>

#include "server/percents.h"

namespace lapidary {
namespace {

constexpr std::string_view kVersionPrefix = "/v1";
constexpr std::array<std::string_view, 7> kVersioned = {
    "/audio",    "/chat/completions", "/completions", "/embeddings",
    "/messages", "/models",           "/responses"};

// Whether `path` is `root` or lies below it.
bool IsUnder(std::string_view path, std::string_view root) {
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

struct NamedPath {
  std::string_view root;    // in front of the name
  std::string_view name;    // empty: there is none
  std::string_view ending;  // behind it
};

// A name of a model may hold slashes, an id of a response none.
NamedPath Split(std::string_view path) {
  constexpr std::string_view kModels = "/v1/models/";
  constexpr std::string_view kResponses = "/v1/responses/";
  if (path.starts_with(kModels)) return {kModels, path.substr(kModels.size()), ""};
  if (!path.starts_with(kResponses) || path == "/v1/responses/input_tokens") return {path, "", ""};
  const std::string_view rest = path.substr(kResponses.size());
  const size_t end = std::min(rest.find('/'), rest.size());
  return {kResponses, rest.substr(0, end), rest.substr(end)};
}

}  // namespace

std::string CanonicalPath(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const bool lacks_version =
      !IsUnder(path, kVersionPrefix) &&
      std::any_of(kVersioned.begin(), kVersioned.end(),
                  [&](std::string_view root) { return IsUnder(path, root); });
  return lacks_version ? std::string(kVersionPrefix).append(path) : std::string(path);
}

std::string RoutePattern(std::string_view canonical_path) {
  const NamedPath path = Split(canonical_path);
  if (path.name.empty()) return std::string(canonical_path);
  return std::string(path.root).append("{id}").append(path.ending);
}

std::string NameInPath(std::string_view canonical_path) {
  return DecodePercents(Split(canonical_path).name);
}

}  // namespace lapidary
