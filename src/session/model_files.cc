#include "session/model_files.h"

namespace lapidary {

Result<ModelFiles> ModelFiles::Open(const std::string& model_or_preset,
                                    const std::filesystem::path& text_directory) {
  ModelFiles files;
  ASSIGN_OR_RETURN(files.description, DescribeModel(model_or_preset));
  const std::filesystem::path directory =
      text_directory.empty() ? files.description.directory.value_or("") : text_directory;
  ASSIGN_OR_RETURN(TextModel text, directory.empty() ? TextModel::None(files.description.name)
                                                     : TextModel::Load(directory));
  files.text = std::make_shared<const TextModel>(std::move(text));
  return files;
}

}  // namespace lapidary
