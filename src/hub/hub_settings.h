// Where the Hugging Face Hub is, who we are there, and where its files are kept on this machine:
// the environment variables of huggingface_hub, with their meanings.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"

namespace lapidary::hub {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT; no slash at its end
  std::string token;                                // HF_TOKEN, or the token file; may be empty
  std::filesystem::path cache;                      // models--OWNER--NAME folders
  bool is_offline = false;                          // HF_HUB_OFFLINE: nothing is fetched
  std::chrono::seconds timeout{30};                 // HF_HUB_DOWNLOAD_TIMEOUT: without an answer

  // An error where a variable cannot mean anything, or no home folder is known. The second form
  // asks `get`, which returns a value or null.
  static Result<HubSettings> FromEnvironment();
  static Result<HubSettings> FromEnvironment(const std::function<const char*(const char*)>& get);

  // "huggingface.co": for messages.
  std::string Host() const;
};

}  // namespace lapidary::hub
