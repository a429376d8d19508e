# Writes OUTPUT: a C++ file that holds INPUT's bytes under VARIABLE.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(
  WRITE ${OUTPUT}
  "#include <string_view>\n"
  "namespace lapidary {\n"
  "static const unsigned char kBytes[] = {${bytes}0};\n"
  "extern const std::string_view ${VARIABLE};\n"
  "const std::string_view ${VARIABLE}(reinterpret_cast<const char*>(kBytes), sizeof(kBytes) - 1);\n"
  "}  // namespace lapidary\n")
