// Which files of a repository a model needs: one format of its weights, the files about text, and
// of a GGUF model's company the towers and the assistant, if they are wanted.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "hub/repo_listing.h"

namespace lapidary::hub {

struct FileWants {
  std::string quant = {};   // the GGUF file of this type; empty: any
  bool takes_gguf = false;  // a GGUF file, where there are other weights as well
  bool weights = true;      // else: what is known before weights are read
  bool text = true;         // tokenizer and chat template; an assistant needs none
  bool media = true;        // image and audio towers that are files of their own (mmproj)
  bool assistant = true;    // a GGUF file that drafts, beside the model
};

struct ChosenFiles {
  std::vector<RepoFile> files;  // small ones first
  std::string model;            // the GGUF file to open; empty: the snapshot's folder
  std::string assistant;        // a GGUF file among them; may be empty
};

// An error says what the repository has instead.
Result<ChosenFiles> ChooseFiles(const RepoListing& listing, const FileWants& wants,
                                const std::string& repo);

}  // namespace lapidary::hub
