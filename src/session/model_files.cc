#include "session/model_files.h"

namespace lapidary {

Result<ModelFiles> ModelFiles::Open(const std::string& model_or_preset,
                                    const std::filesystem::path& text_directory) {
  ModelFiles files;
  ASSIGN_OR_RETURN(files.description, DescribeModel(model_or_preset));
  const ModelDescription& model = files.description;
  std::filesystem::path path = text_directory;
  if (path.empty() && !model.is_preset())
    path = model.gguf_file ? *model.gguf_file : *model.directory;
  ASSIGN_OR_RETURN(TextModel text,
                   path.empty() ? TextModel::None(model.name) : TextModel::Load(path));
  files.text = std::make_shared<const TextModel>(std::move(text));
  return files;
}

}  // namespace lapidary
