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

# lapidary_embed_page(TARGET VARIABLE FILE): the same for an HTML page with one <style> and one <script>,
# and the hashes that let a Content-Security-Policy name them, in hexadecimal: VARIABLESha256 of the page,
# VARIABLEStyleSha256 and VARIABLEScriptSha256 of what is between the tags.
function(lapidary_embed_page target variable file)
  lapidary_embed(${target} ${variable} ${file})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${variable}Hashes.cc)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${file} -DOUTPUT=${output} -DVARIABLE=${variable} -P
            ${PROJECT_SOURCE_DIR}/cmake/HashPageScript.cmake
    DEPENDS ${file} ${PROJECT_SOURCE_DIR}/cmake/HashPageScript.cmake)
  target_sources(${target} PRIVATE ${output})
endfunction()
