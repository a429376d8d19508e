#include "hub/repo_path.h"

#include <algorithm>
#include <cctype>

namespace lapidary::hub {
namespace {

constexpr size_t kMaxPathLength = 1024;
constexpr size_t kMaxPartLength = 240;  // room for what is appended while a file is fetched
constexpr size_t kMaxRevisionLength = 200;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

bool IsRepoPath(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathLength) return false;
  for (const unsigned char c : path) {
    if (c < 0x20 || c == 0x7f || c == '\\') return false;
  }
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPartLength) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool IsRevision(std::string_view revision) {
  const auto is_allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
           c == '/' || c == '+';
  };
  return revision.size() <= kMaxRevisionLength && IsRepoPath(revision) &&
         std::all_of(revision.begin(), revision.end(), is_allowed) &&
         revision.find("..") == std::string_view::npos && revision.front() != '-';
}

bool IsCommit(std::string_view text) { return text.size() == 40 && IsHex(text); }

bool IsBlobName(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) && IsHex(text);
}

}  // namespace lapidary::hub
