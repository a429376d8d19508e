// What the Hub says of a model: listings and commits from outside, and names. Whatever passes must
// be safe as a path below the cache.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "hub/file_choice.h"
#include "hub/model_name.h"
#include "hub/repo_cache.h"
#include "hub/repo_listing.h"
#include "hub/repo_path.h"

using lapidary::hub::RepoListing;

namespace {

void CheckListing(const RepoListing& listing) {
  const lapidary::hub::RepoCache cache("/cache", "owner/name");
  const auto snapshot = cache.Snapshot(std::string(40, 'a'));
  for (const auto& file : listing.files) {
    const std::string path = (snapshot / file.path).lexically_normal().string();
    CHECK(path.starts_with(snapshot.string() + "/")) << path;
    CHECK(lapidary::hub::IsBlobName(file.BlobName()));
  }
  for (const bool takes_gguf : {false, true}) {
    (void)lapidary::hub::ChooseFiles(listing, {.quant = takes_gguf ? "Q4_0" : ""}, "owner/name");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RepoListing listing;
  listing.commit = std::string(40, 'a');
  if (lapidary::hub::AddTreePage(text, "the listing", &listing).ok() &&
      lapidary::hub::CompleteListing("the listing", &listing).ok()) {
    CheckListing(listing);
    const auto again =
        lapidary::hub::ParseTreeFile(lapidary::hub::WriteTreeFile(listing), "tree", listing.commit);
    CHECK(again.ok() && again->files.size() == listing.files.size());
  }
  const auto tree = lapidary::hub::ParseTreeFile(text, "tree", listing.commit);
  if (tree.ok()) CheckListing(*tree);
  (void)lapidary::hub::ParseCommit(text, "the Hub");
  const auto name = lapidary::hub::ParseModelName(text);
  if (name.ok() && name->has_value()) {
    const lapidary::hub::RepoCache cache("/cache", (*name)->repo);
    CHECK(cache.folder().lexically_normal().parent_path() == "/cache");
    CHECK(lapidary::hub::IsRevision((*name)->revision));
  }
  return 0;
}
