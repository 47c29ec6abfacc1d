// What the theme leaves out for keyboards and screen readers.

// Code and tables that scroll can be reached, and so scrolled, with the keyboard.
function makeScrollable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

// Headings of the menu have a level, side bars a name, and the search page a title.
function nameParts() {
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = "2";
  document.querySelector("aside.sidebar-drawer").ariaLabel = "Menu";
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  if (document.querySelector("h1") === null) {
    const title = document.createElement("h1");
    title.textContent = "Search";
    document.querySelector("article").prepend(title);
  }
}

addEventListener("load", makeScrollable);
addEventListener("load", nameParts);
addEventListener("resize", makeScrollable);
