#include "server/adapter_requests.h"

#include "base/excerpt.h"
#include "gguf/gguf_checkpoint.h"
#include "server/generation_request.h"
#include "server/request_json.h"

namespace lapidary {
namespace {

ApiStatus CheckAllowed(const ServedModel& model, const RuntimeAdapters& runtime) {
  if (model.adapters() != nullptr && runtime.is_allowed) return {};
  ApiError error{403,
                 "adapters are fixed while this server runs; start it with --enable-lora, "
                 "--allow-runtime-lora and --lora-dir DIR to change them"};
  error.code = "runtime_lora_disabled";
  return error;
}

// The directory that a request names, links resolved, if it lies where adapters may lie.
ApiStatus ResolvePath(const std::string& named, const RuntimeAdapters& runtime,
                      std::filesystem::path* path) {
  ApiError outside = BadRequest("lora_path",
                                "'lora_path' must name a directory, or a GGUF file, below the "
                                "server's --lora-dir, which '{}' "
                                "does not",
                                Excerpt(named));
  if (named.find('\0') != std::string::npos) return outside;
  std::error_code error;
  const auto root = std::filesystem::canonical(runtime.directory, error);
  if (error) return outside;
  *path = std::filesystem::canonical(root / named, error);
  if (error || (!std::filesystem::is_directory(*path, error) && !IsGgufFile(*path))) return outside;
  const auto [end_of_root, at] =
      std::mismatch(root.begin(), root.end(), path->begin(), path->end());
  if (end_of_root != root.end() || at == path->end()) return outside;
  return {};
}

}  // namespace

ApiStatus LoadAdapter(const OrderedJson& body, const ServedModel& model,
                      const RuntimeAdapters& runtime, std::string* done) {
  RETURN_IF_API_ERROR(CheckAllowed(model, runtime));
  RequestFields fields(body);
  const std::string name = fields.String("lora_name", "");
  const std::string named_path = fields.String("lora_path", "");
  const bool replaces = fields.Bool("load_inplace", false);
  fields.Accept({"base_model_name", "is_3d_lora_weight"});
  RETURN_IF_API_ERROR(fields.status());
  LogUnknownFields(fields);
  if (name.empty()) return BadRequest("lora_name", "'lora_name' is missing");
  if (named_path.empty()) return BadRequest("lora_path", "'lora_path' is missing");
  if (std::ranges::find(model.names(), name) != model.names().end()) {
    return BadRequest("lora_name", "'{}' is the model's own name", Excerpt(name));
  }
  std::filesystem::path path;
  RETURN_IF_API_ERROR(ResolvePath(named_path, runtime, &path));
  const Status loaded = model.adapters()->Load(name, path, named_path, replaces);
  if (!loaded.ok()) return BadRequest("lora_path", "{}", loaded.error().message);
  *done = fmt::format("Success: LoRA adapter '{}' added successfully.", name);
  return {};
}

ApiStatus UnloadAdapter(const OrderedJson& body, const ServedModel& model,
                        const RuntimeAdapters& runtime, std::string* done) {
  RETURN_IF_API_ERROR(CheckAllowed(model, runtime));
  RequestFields fields(body);
  const std::string name = fields.String("lora_name", "");
  fields.Accept({"lora_int_id"});
  RETURN_IF_API_ERROR(fields.status());
  LogUnknownFields(fields);
  if (name.empty()) return BadRequest("lora_name", "'lora_name' is missing");
  if (!model.adapters()->Unload(name)) {
    return ApiError{404, fmt::format("there is no LoRA adapter '{}'", Excerpt(name)), "lora_name"};
  }
  *done = fmt::format("Success: LoRA adapter '{}' removed successfully.", name);
  return {};
}

}  // namespace lapidary
