// /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them: adapters while the server
// runs, of one directory alone.
#pragma once

#include <filesystem>
#include <string>

#include "server/served_model.h"

namespace lapidary {

struct RuntimeAdapters {
  bool is_allowed = false;
  std::filesystem::path directory;  // where adapters may lie, and what relative paths are of
};

// Say in one line what was done. Reading an adapter may take long.
ApiStatus LoadAdapter(const OrderedJson& body, const ServedModel& model,
                      const RuntimeAdapters& runtime, std::string* done);
ApiStatus UnloadAdapter(const OrderedJson& body, const ServedModel& model,
                        const RuntimeAdapters& runtime, std::string* done);

}  // namespace lapidary
