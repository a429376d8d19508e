# Writes OUTPUT: a C++ file with the SHA-256 of the page INPUT, its <style> and its <script>.
file(READ ${INPUT} page)

# hash_element(NAME RESULT): of the text between <NAME> and </NAME>, which must be there exactly once.
function(hash_element name result)
  string(FIND "${page}" "<${name}>" begin)
  string(FIND "${page}" "<${name}>" last_begin REVERSE)
  string(FIND "${page}" "</${name}>" end)
  if(begin EQUAL -1 OR NOT begin EQUAL last_begin OR end LESS begin)
    message(FATAL_ERROR "${INPUT}: there must be exactly one <${name}>...</${name}>, without attributes")
  endif()
  string(LENGTH "<${name}>" tag_length)
  math(EXPR begin "${begin} + ${tag_length}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${length} text)
  string(SHA256 hash "${text}")
  set(${result} ${hash} PARENT_SCOPE)
endfunction()

# define(NAME HASH): one constant of the C++ file.
function(define name hash)
  file(APPEND ${OUTPUT} "extern const std::string_view ${name};\n"
                        "const std::string_view ${name} = \"${hash}\";\n")
endfunction()

file(SHA256 ${INPUT} page_hash)
hash_element(style style_hash)
hash_element(script script_hash)
file(WRITE ${OUTPUT} "#include <string_view>\n" "namespace lapidary {\n")
define(${VARIABLE}Sha256 ${page_hash})
define(${VARIABLE}StyleSha256 ${style_hash})
define(${VARIABLE}ScriptSha256 ${script_hash})
file(APPEND ${OUTPUT} "}  // namespace lapidary\n")
