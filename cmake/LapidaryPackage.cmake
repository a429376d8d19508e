# What a package of the program holds (component program), and how CPack makes a .deb of it. `./lapidary package` calls
# both: cpack for the .deb, cmake --install for the tarball.
include(GNUInstallDirs)

install(TARGETS lapidary RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/lapidary/models COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT program)

# The unit of deploy/, for a program under the package's prefix.
file(READ ${PROJECT_SOURCE_DIR}/deploy/lapidary.service unit)
string(REPLACE "/usr/local/bin/lapidary" "/usr/bin/lapidary" unit "${unit}")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/package/lapidary.service "${unit}")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/package/lapidary.service DESTINATION lib/systemd/system COMPONENT program)

set(CPACK_PACKAGE_NAME lapidary)
set(CPACK_PACKAGE_VENDOR "The Lapidary maintainers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "OpenAI-compatible server for Google's Gemma 4 models")
set(CPACK_PACKAGE_DESCRIPTION
    "Serves Gemma 4 (E2B, E4B, 12B, 26B-A4B, 31B) on one NVIDIA Hopper GPU or on a CPU: APIs of OpenAI and Anthropic, a
chat page, structured output, images, audio, speculative decoding and quantised weights. Comes with small trained
models, so that it answers before anything is downloaded.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Lapidary maintainers <maintainers@lapidary.invalid>")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # the libraries it is linked with become its dependencies
set(CPACK_DEBIAN_PACKAGE_DEPENDS ca-certificates)
include(CPack)
