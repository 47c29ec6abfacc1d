// Code and tables that scroll can be reached, and so scrolled, with the keyboard.
function makeScrollable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", makeScrollable);
addEventListener("resize", makeScrollable);
