# lapidary_embed(TARGET VARIABLE FILE): compiles FILE into TARGET as
#   namespace lapidary { extern const std::string_view VARIABLE; }
function(lapidary_embed target variable file)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${variable}.cc)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${file} -DOUTPUT=${output} -DVARIABLE=${variable} -P
            ${PROJECT_SOURCE_DIR}/cmake/EmbedFileScript.cmake
    DEPENDS ${file} ${PROJECT_SOURCE_DIR}/cmake/EmbedFileScript.cmake)
  target_sources(${target} PRIVATE ${output})
  set_source_files_properties(${output} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# lapidary_embed_page(TARGET VARIABLE FILE): the same for an HTML page with one <style> and one <script>. A line
# "/* include NAME */" becomes the file NAME of the same folder, so the page is one file when it is served. With it come
# the hashes that let a Content-Security-Policy name them, in hexadecimal: VARIABLESha256 of the page,
# VARIABLEStyleSha256 and VARIABLEScriptSha256 of what is between the tags.
function(lapidary_embed_page target variable file)
  get_filename_component(folder ${file} DIRECTORY)
  # The page says which files it is made of; a page that changes is read again.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  string(REGEX MATCHALL "include [a-z_]+[.][a-z]+ " parts "${text}")
  list(TRANSFORM parts REPLACE "include (.*) " "${folder}/\\1")
  set(page ${CMAKE_CURRENT_BINARY_DIR}/${variable}.html)
  set(script ${PROJECT_SOURCE_DIR}/cmake/AssemblePageScript.cmake)
  add_custom_command(
    OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${file} -DOUTPUT=${page} -P ${script}
    DEPENDS ${file} ${parts} ${script})
  lapidary_embed(${target} ${variable} ${page})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${variable}Hashes.cc)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${page} -DOUTPUT=${output} -DVARIABLE=${variable} -P
            ${PROJECT_SOURCE_DIR}/cmake/HashPageScript.cmake
    DEPENDS ${page} ${PROJECT_SOURCE_DIR}/cmake/HashPageScript.cmake)
  target_sources(${target} PRIVATE ${output})
endfunction()
